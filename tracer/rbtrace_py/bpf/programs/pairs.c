/*
 * The time from one probe to another on the same thread. Each thread has one stack of
 * beginnings per series, so that pairs can nest and recurse.
 *
 *   VALUES, BY, DENSE  as in record.h; VALUES is 1
 *   PAIR_DEPTH  number of newest beginnings to keep per thread, a power of two. A
 *               beginning that never ends, because an exception skipped its end, does
 *               not affect others. Ends of discarded beginnings are counted.
 *   MAX_PAIRS   maximum number of pairs; a site's role is twice its pair's number, plus
 *               1 at the end of the pair
 * The loader sets
 *   PAIRS       number of pairs
 */
#define OWN 0
#define FILTER_BASE (BY != 0)
#include "common.h"
#include "record.h"

struct thread {
  u32 tid;
  u32 pair;
};
CHECK_SIZE(thread); CHECK(thread, tid); CHECK(thread, pair);

struct beginnings {
  u64 depth; /* number of open beginnings */
  u64 floor; /* index of the oldest kept beginning */
  u64 started[PAIR_DEPTH];
};
CHECK_SIZE(beginnings); CHECK(beginnings, depth); CHECK(beginnings, floor);
CHECK(beginnings, started);

static __always_inline struct beginnings *thread_of(u32 pair, bool make) {
  struct thread thread = {};
  struct beginnings *found;
  u32 first = 0;
  thread.tid = (u32)bpf_get_current_pid_tgid();
  thread.pair = pair;
  found = LOOKUP(threads, &thread);
  if (found || !make)
    return found;
  /* An entry of zeros is too large for the stack, so a map holds it. */
  found = LOOKUP(nothing, &first);
  if (!found)
    return NULL;
  UPDATE(threads, &thread, found);
  return LOOKUP(threads, &thread);
}

int on_hit(struct pt_regs *ctx) {
  u32 number = site_number(ctx);
  struct site *site = site_of(number);
  struct beginnings *open;
  u64 depth, started;
  if (!is_counted(site))
    return 0;
  bool begins = !(site->role & 1);
  open = thread_of(site->role >> 1, begins);
  if (begins) {
    if (!open) {
      count_one(COUNTER_NO_ROOM);
      return 0;
    }
    depth = open->depth;
    open->depth = depth + 1;
    if (depth < open->floor)
      open->floor = depth;
    else if (depth >= open->floor + PAIR_DEPTH)
      open->floor = depth - PAIR_DEPTH + 1;
    /* Last, so that this program's time is not measured. */
    open->started[depth & (PAIR_DEPTH - 1)] = bpf_ktime_get_ns();
    return 0;
  }
  /* First, for the same reason. */
  u64 now = bpf_ktime_get_ns();
  u64 slots[SLOTS + 1];
  FILTER_SCRATCH;
  if (!open || open->depth == 0) {
    count_one(COUNTER_NO_BEGIN);
    return 0;
  }
  depth = open->depth - 1;
  open->depth = depth;
  if (depth < open->floor) {
    count_one(COUNTER_TOO_DEEP);
    return 0;
  }
  started = open->started[depth & (PAIR_DEPTH - 1)];
  if (!read_slots(ctx, site, slots)) {
    count_one(COUNTER_UNREADABLE);
    return 0;
  }
  if (!(FILTER)) {
    count_one(COUNTER_FILTERED);
    return 0;
  }
  if (now - started > LARGEST) {
    count_one(COUNTER_BEYOND_RANGE);
    return 0;
  }
  record(site->series, now - started, slots);
  return 0;
}

/* sched_process_exit: a thread id may be reused. */
int on_thread_exit(struct bpf_raw_tracepoint_args *ctx) {
  struct thread thread = {};
  thread.tid = (u32)bpf_get_current_pid_tgid();
#pragma unroll
  for (u32 i = 0; i < MAX_PAIRS; i++) {
    thread.pair = i;
    if (i < AT_LOAD(PAIRS))
      DELETE(threads, &thread);
  }
  return 0;
}
