/*
 * The Ruby stack of the thread that fires an event: a USDT probe, a function of a
 * library, or a kernel tracepoint. It is walked and counted as in stacks.c.
 *
 * The program of a uprobe can be preempted, even by itself, and tracepoints fire in
 * interrupts. Therefore a run uses free scratch space, and marks the epoch in which it
 * counts until it has counted.
 *
 * The loader sets the numbers in stacks.c and common.h, and
 *   EVERY        one event in EVERY of a thread is sampled
 *   WEIGHTED     1: the weight is an argument: a probe's first slot, or
 *   FIELD_OFFSET, FIELD_SIZE, FIELD_SIGNED
 *                a field of a tracepoint's record
 */
#define WALK_ONLY
#include "stacks.c"
#define FILTER_BASE 1
#include "common.h"

#define MOST_SPENT 200000 /* ns of one run; a longer run was interrupted */

#define INSIDE(epoch) (1 + (epoch)) /* index of the number of runs that count in it */

static __always_inline void add(u64 *cell, s64 number) {
  __sync_fetch_and_add(cell, number);
}

/*
 * Take free scratch space of this processor. A run owns the space if it is its only
 * user; a run that interrupts it finds two.
 */
static __always_inline struct scratch *take_scratch(void) {
  u32 place = bpf_get_smp_processor_id() * SCRATCHES;
#pragma unroll
  for (int i = 0; i < SCRATCHES; i++, place++) {
    struct scratch *scratch = LOOKUP(scratches, &place);
    if (!scratch)
      return 0;
    add(&scratch->users, 1);
    if (*(volatile u64 *)&scratch->users == 1)
      return scratch;
    add(&scratch->users, -1);
  }
  count_one(COUNTER_IN_USE);
  return 0;
}

/* Mark that a run counts in this epoch (1) or has counted (-1). */
static __always_inline void be_inside(u32 epoch, s64 number) {
  u32 place = INSIDE(epoch);
  u64 *inside = LOOKUP(epoch, &place);
  if (inside)
    add(inside, number);
}

/* User space reads the counts of an epoch after it has ended and no run is inside. */
static __always_inline void tally_event(struct scratch *scratch) {
  u64 epoch = current_epoch();
  be_inside(epoch, 1);
  if (current_epoch() != epoch) { /* it has just ended */
    be_inside(epoch, -1);
    epoch ^= 1;
    be_inside(epoch, 1);
  }
  tally(scratch, scratch->weight, epoch);
  be_inside(epoch, -1);
}

/* Return whether to sample an event; the first is any of the first EVERY events. */
static __always_inline bool is_due(u64 ids) {
  u64 every = AT_LOAD(EVERY), turn, *left;
  if (every == 1)
    return true;
  left = LOOKUP(turns, &ids);
  if (!left) {
    turn = bpf_get_prandom_u32() % every;
    UPDATE(turns, &ids, &turn);
    left = LOOKUP(turns, &ids);
    if (!left)
      return false;
  }
  turn = *left;
  *left = turn ? turn - 1 : every - 1;
  return !turn;
}

/* Return scratch space for an event, or 0 if it is not sampled. */
static __always_inline struct scratch *begin_event(u64 ids) {
  count_one(COUNTER_HITS);
  return is_due(ids) ? take_scratch() : 0;
}

#define NO_WEIGHT (-1ULL)
#define MOST_WEIGHT (1ULL << 44) /* the sum of half a million events does not wrap */

/*
 * ctx: context of a kernel event, else 0
 * scratch->weight: weight of the event. Negative weights, and weights whose sum could
 * wrap around, are rejected.
 */
static __always_inline void take_event(void *ctx, struct ruby *ruby,
                                       struct scratch *scratch, u64 ids, u64 began) {
  scratch->head.time = began;
  if (scratch->weight > MOST_WEIGHT / AT_LOAD(EVERY)) {
    count_one(COUNTER_NEGATIVE);
  } else {
    scratch->weight *= AT_LOAD(EVERY);
    int outcome = begin(ruby, scratch, ids, bpf_get_current_task());
    if (walk_task(ruby, scratch, outcome) == WALKED) {
      if (ctx)
        add_kernel_frames(ctx, scratch);
      tally_event(scratch);
    }
  }
  add(&scratch->users, -1);
}

static __always_inline void end_event(u64 began) {
  u64 spent = bpf_ktime_get_ns() - began;
  count(COUNTER_SPENT, spent < MOST_SPENT ? spent : MOST_SPENT);
}

int on_hit(struct pt_regs *ctx) {
  u64 began = bpf_ktime_get_ns(), ids = bpf_get_current_pid_tgid(), weight = 1;
  u32 tgid = ids >> 32;
  struct ruby *ruby = LOOKUP(rubies, &tgid);
  struct site *site = site_of(site_number(ctx));
  struct scratch *scratch;
  if (!ruby || !site || site->is_off)
    return 0;
  scratch = begin_event(ids);
  if (scratch) {
    if (AT_LOAD(WEIGHTED) && !read_slot(ctx, site, 0, &weight))
      weight = NO_WEIGHT;
    scratch->weight = weight;
    take_event(0, ruby, scratch, ids, began);
  }
  end_event(began);
  return 0;
}

/* ctx: the tracepoint's record; its format has the offsets of the fields. */
int on_event(void *ctx) {
  u64 began = bpf_ktime_get_ns(), ids = bpf_get_current_pid_tgid(), weight = 1;
  u32 tgid = ids >> 32;
  struct ruby *ruby = LOOKUP(rubies, &tgid);
  struct scratch *scratch;
  if (!ruby)
    return 0;
  scratch = begin_event(ids);
  if (scratch) {
    if (AT_LOAD(WEIGHTED)) {
      weight = 0;
      if (read_kernel(&weight, AT_LOAD(FIELD_SIZE), ctx + AT_LOAD(FIELD_OFFSET)))
        weight = NO_WEIGHT;
      else
        weight = resize(weight, AT_LOAD(FIELD_SIZE), AT_LOAD(FIELD_SIGNED));
    }
    scratch->weight = weight;
    take_event(ctx, ruby, scratch, ids, began);
  }
  end_event(began);
  return 0;
}
