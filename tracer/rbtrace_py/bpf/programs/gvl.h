/*
 * The GVL: its holder, the number of its waiters, and the sum of their waiting times
 * while the holder is off the CPU.
 *
 *   gvls         map from struct gvl to the ids of the last thread that left its CPU
 *                while it held this GVL
 */
#define ANY_QUEUE 0
#define MOST_QUEUED 64 /* from the tail: a thread joins the queue at its end */
#define MOST_WAITERS 512

struct gvl {
  u64 tgid;
  u64 queue; /* address of its list's head; ANY_QUEUE: the GVL held last */
};
CHECK_SIZE(gvl); CHECK(gvl, tgid); CHECK(gvl, queue);

/* Return the queue of the ractor's GVL, or up to 2.7 of the VM's; 0: unknown. */
static __always_inline u64 queue_of(struct ruby *ruby, u64 thread) {
  u64 head = ruby->queue;
  if (!ruby->gvl_node)
    return 0;
  if (!head) {
    read_user(&head, sizeof head, (void *)(thread + ruby->th_ractor));
    head += ruby->gvl_queue;
  }
  return head;
}

/* Return whether the thread waits for the GVL. */
static __always_inline bool is_queued(struct ruby *ruby, u64 thread) {
  u64 head = queue_of(ruby, thread), place = head;
  if (!head)
    return false;
#pragma clang loop unroll(disable)
  for (int step = 0; step < MOST_QUEUED; step++) {
    if (read_user(&place, sizeof place, (void *)(place + 8)) || place == head)
      return false;
    if (place == thread + ruby->gvl_node)
      return true;
  }
  return false;
}

static __always_inline u64 queue_length(struct scratch *scratch, u64 head) {
  u64 place = head;
  scratch->waiters = 0;
#pragma clang loop unroll(disable)
  for (int step = 0; step < MOST_WAITERS; step++) {
    u64 failed = read_user(&place, sizeof place, (void *)place);
    if (failed | (place == head))
      break;
    scratch->waiters++;
  }
  return scratch->waiters;
}

static __always_inline bool has_gvl(struct ruby *ruby, u64 thread, u64 queue) {
  u64 place = ruby->holder, holder = 0;
  if (!ruby->queue)
    place += queue - ruby->gvl_queue;
  read_user(&holder, sizeof holder, (void *)place);
  return holder == thread;
}

/* Add the waiting times up to now, and set the number of waiters from now on. */
static __always_inline void wait_on(struct interval *interval, u64 now, u64 waiters) {
  interval->waited += waited_since(interval, now);
  interval->since = now;
  interval->waiters = waiters;
}

/* After begin: return the number of waiters for the current thread's GVL. */
static __always_inline u64 waiters_of(struct ruby *ruby, struct scratch *scratch) {
  u64 thread = scratch->head.key.thread, queue = queue_of(ruby, thread);
  return has_gvl(ruby, thread, queue) ? queue_length(scratch, queue) : 0;
}

/*
 * Set the number of waiters if it is larger. Until the holder has a CPU, the queue only
 * grows. A smaller length was read before another waiter joined the queue, which has
 * already counted itself.
 */
static __always_inline void wait_if_more(struct interval *interval, u64 now,
                                         u64 waiters) {
  if (waiters > interval->waiters)
    wait_on(interval, now, waiters);
}

/*
 * The current thread leaves its CPU, and may begin to wait for a holder that is off the
 * CPU. A thread that never held the GVL has no Ruby stack; it is found by ANY_QUEUE.
 */
static __always_inline void wait_for_holder(struct ruby *ruby, struct scratch *scratch,
                                            u64 ids, u64 queue, u64 now) {
  struct gvl gvl = {ids >> 32, queue};
  u64 *holder = LOOKUP(gvls, &gvl);
  struct interval *interval = holder ? LOOKUP(intervals, holder) : 0;
  if (!interval || !(interval->key.marks & OFF_CPU))
    return;
  if (queue == ANY_QUEUE)
    queue = queue_of(ruby, interval->key.thread);
  wait_if_more(interval, now, queue_length(scratch, queue));
}

/*
 * After begin: the current thread leaves its CPU. Return whether it keeps the GVL.
 */
static __always_inline bool leaves_with_gvl(struct ruby *ruby, struct scratch *scratch,
                                            u64 ids, u64 now) {
  u64 thread = scratch->head.key.thread;
  struct gvl gvl = {ids >> 32, queue_of(ruby, thread)};
  struct gvl any = {ids >> 32, ANY_QUEUE};
  if (has_gvl(ruby, thread, gvl.queue)) {
    if (UPDATE(gvls, &gvl, &ids) || UPDATE(gvls, &any, &ids))
      count_one(COUNTER_NO_ROOM);
    return true;
  }
  wait_for_holder(ruby, scratch, ids, gvl.queue, now);
  return false;
}

/*
 * The current thread leaves its CPU with the GVL. Count the waiters only after its
 * interval exists: a thread that joins the queue later finds the interval, and may
 * already have counted.
 */
static __always_inline void count_waiters(struct ruby *ruby, struct scratch *scratch,
                                          u64 ids) {
  struct interval *interval = LOOKUP(intervals, &ids);
  u64 thread = scratch->head.key.thread, waiters;
  if (!interval || !thread) /* the stack could not be read */
    return;
  waiters = queue_length(scratch, queue_of(ruby, thread));
  wait_if_more(interval, interval->since, waiters);
}
