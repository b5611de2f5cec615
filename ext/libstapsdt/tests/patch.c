/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "patch.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t patch_recorded[SDT_MAX_OPERANDS];
unsigned patch_calls;

static void recorder(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                     uint64_t f, uint64_t g, uint64_t h, uint64_t i, uint64_t j,
                     uint64_t k, uint64_t l) {
  const uint64_t all[SDT_MAX_OPERANDS] = {a, b, c, d, e, f, g, h, i, j, k, l};
  memcpy(patch_recorded, all, sizeof(all));
  patch_calls++;
}

static int write_site(const sdt_probe *probe, const void *bytes, size_t size) {
  uintptr_t site = (uintptr_t)probe->site;
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  void *start = (void *)(site / page * page);
  if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0)
    return -1;
  memcpy((void *)site, bytes, size);
  int status = mprotect(start, page, PROT_READ | PROT_EXEC);
  __builtin___clear_cache((char *)site, (char *)site + size);
  return status;
}

int patch_breakpoint(const sdt_probe *probe) {
  const unsigned char breakpoint = 0xcc;
  return write_site(probe, &breakpoint, 1);
}

int patch_restore(const sdt_probe *probe) {
  const uint64_t idle[3] = {SDT_SITE_IDLE, SDT_SITE_IDLE, SDT_SITE_IDLE};
  return write_site(probe, idle, sizeof(idle));
}

int patch_record(const sdt_probe *probe) {
#if defined(__x86_64__)
  /* nop; jmp *0(%rip) */
  unsigned char code[7 + 8] = {0x90, 0xff, 0x25};
  const size_t address = 7;
#else
  /* nop; ldr x16, 8; br x16 */
  unsigned char code[12 + 8] = {0x1f, 0x20, 0x03, 0xd5, 0x50, 0x00,
                                0x00, 0x58, 0x00, 0x02, 0x1f, 0xd6};
  const size_t address = 12;
#endif
  uintptr_t target = (uintptr_t)recorder;
  memcpy(code + address, &target, sizeof(target));
  return write_site(probe, code, sizeof(code));
}
