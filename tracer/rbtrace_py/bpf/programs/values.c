/*
 * One hit, one value: counts, distributions of an operand, and the latency of
 * a span, whose end probe carries it.
 *
 *   VALUE_SLOT, OUTCOME_SLOT  places among the slots
 */
#include "common.h"
#include "record.h"

int on_hit(struct pt_regs *ctx) {
  u32 number = site_number(ctx);
  struct site *site = sites.lookup(&number);
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
  value = slots[VALUE_SLOT];
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
  if (slots[OUTCOME_SLOT] == 1)
    count_one(COUNTER_RAISED);
  else if (slots[OUTCOME_SLOT] == 2)
    count_one(COUNTER_THROWN);
#elif VALUES == 2
  if (value == NIL_INTEGER && site->slots[VALUE_SLOT].size == 8) {
    count_one(site->slots[VALUE_SLOT].is_duration ? COUNTER_RUNNING_AT_ATTACH
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
