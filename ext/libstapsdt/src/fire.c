/*
 * Calls of sites. The C calling convention puts the operands where the notes
 * say they are, so a site is called as a function with that many arguments.
 * Probes with few operands use a cheaper call.
 *
 * SPDX-License-Identifier: MIT
 */
#include "common.h"

typedef uint64_t u64;

SDT_EXPORT void sdt_fire(const sdt_probe *probe, const uint64_t *a) {
  void *site = (void *)(uintptr_t)probe->site;

#define T2 u64, u64
#define T6 T2, T2, T2
#define CALL(types, ...)                                                       \
  ((void (*)types)site)(__VA_ARGS__);                                          \
  return
  switch (probe->count) {
  case 0:
    CALL((void));
  case 1:
    CALL((u64), a[0]);
  case 2:
    CALL((T2), a[0], a[1]);
  case 3:
    CALL((T2, u64), a[0], a[1], a[2]);
  case 4:
    CALL((T2, T2), a[0], a[1], a[2], a[3]);
  case 5:
    CALL((T2, T2, u64), a[0], a[1], a[2], a[3], a[4]);
  case 6:
    CALL((T6), a[0], a[1], a[2], a[3], a[4], a[5]);
  case 7:
    CALL((T6, u64), a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
  case 8:
    CALL((T6, T2), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
  case 9:
    CALL((T6, T2, u64), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
  case 10:
    CALL((T6, T2, T2), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8],
         a[9]);
  case 11:
    CALL((T6, T2, T2, u64), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
         a[8], a[9], a[10]);
  case 12:
    CALL((T6, T6), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9],
         a[10], a[11]);
  default:
    return;
  }
#undef CALL
#undef T6
#undef T2
}
