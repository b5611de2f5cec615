/*
 * Records one value per hit: for counts, distributions of an operand, and latencies of
 * spans, which the end probe passes. The first slot is the value, the second a span's
 * outcome.
 *
 *   VALUES, BY, DENSE  as in record.h
 */
#if VALUES == 1
#define OWN 2
#else
#define OWN (VALUES != 0)
#endif
#define FILTER_BASE (OWN + (BY != 0))
#include "common.h"
#include "record.h"

int on_hit(struct pt_regs *ctx) {
  u32 number = site_number(ctx);
  struct site *site = site_of(number);
  u64 slots[SLOTS + 1];
  FILTER_SCRATCH;
  u64 value = 0;
  if (!is_counted(site))
    return 0;
  if (!read_slots(ctx, site, slots)) {
    count_one(COUNTER_UNREADABLE);
    return 0;
  }
  if (!(FILTER)) {
    count_one(COUNTER_FILTERED);
    return 0;
  }
#if VALUES
  value = slots[0];
#endif
#if VALUES == 1
  if ((s64)value < 0) {
    count_one((s64)value == -1 ? COUNTER_RUNNING_AT_ATTACH : COUNTER_NEGATIVE);
    return 0;
  }
  if (value > LARGEST) {
    count_one(COUNTER_BEYOND_RANGE);
    return 0;
  }
  if (slots[1] == 1)
    count_one(COUNTER_RAISED);
  else if (slots[1] == 2)
    count_one(COUNTER_THROWN);
#elif VALUES == 2
  if (value == NIL_INTEGER && site->slots[0].size == 8) {
    count_one(site->slots[0].is_duration ? COUNTER_RUNNING_AT_ATTACH
                                                  : COUNTER_NIL);
    return 0;
  }
#elif VALUES == 3
  if (value == 0x7ff8726274726163ULL) {
    count_one(COUNTER_NIL);
    return 0;
  }
#endif
  record(site->series, value, slots);
  return 0;
}
