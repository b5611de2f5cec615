/*
 * The baseline of attached programs.
 *
 *   READS 0  nothing: the bare trap
 *   READS 1  looks its site up and fetches every operand, as `trace` does
 */
#include "common.h"

#if !READS
int on_hit(struct pt_regs *ctx) { return 0; }
#else

int on_hit(struct pt_regs *ctx) {
  u32 number = site_number(ctx);
  struct site *site = site_of(number);
  u64 slots[SLOTS + 1];
  u64 sum = 0;
  if (!site)
    return 0;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    slots[i] = 0;
    if (i < site->bulk_first || i >= site->bulk_first + site->bulk_count)
      read_operand(ctx, &site->slots[i], i, &slots[i]);
  }
#if FILTER_BASE > 6
  if (site->bulk_count) {
    u64 size = site->bulk_count * 8;
    u64 where = read_register(ctx, site->slots[6].reg) + site->slots[6].value;
    if (size > (SLOTS - 6) * 8)
      size = (SLOTS - 6) * 8;
    if (site->bulk_first == 6)
      read_user(&slots[6], size, (void *)where);
  }
#endif
#pragma unroll
  for (int i = 0; i < SLOTS; i++)
    sum += slots[i];
  /* Never so, but the compiler cannot know. */
  if (sum == 0x123456789abcdefULL)
    count_one(COUNTER_SEEN);
  return 0;
}
#endif
