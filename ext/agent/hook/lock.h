/*
 * The GVL orders what the main Ractor's threads do here. Others run beside it: from the
 * first one that is hooked on, whoever is in the hook holds a lock.
 *
 * It is never held where Ruby may stop this thread for the others, to collect garbage
 * say: one that spins for it does not stop.
 */

static int parallel; /* set by the main Ractor, and never taken back */
static uint32_t lock_word;
static int apart; /* is who holds it in another Ractor than the main one? */

enum { SPINS = 128 };

static void pause_a_moment(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

NEVER_INLINE void take_lock(void) {
  const struct timespec moment = {.tv_nsec = 20000};
  for (int tries = 0; __atomic_exchange_n(&lock_word, 1, __ATOMIC_ACQUIRE); tries++) {
    for (int i = 0; i < SPINS && __atomic_load_n(&lock_word, __ATOMIC_RELAXED); i++)
      pause_a_moment();
    /* Who holds it may wait for this processor, and have a lower priority. */
    if (tries < SPINS)
      syscall(SYS_sched_yield);
    else
      syscall(SYS_nanosleep, &moment, NULL);
  }
  apart = 0;
}

static void drop_lock(void) { __atomic_store_n(&lock_word, 0, __ATOMIC_RELEASE); }

/* Around what is no event of a method, and calls no Ruby. */
ALWAYS_INLINE int begin_alone(void) {
  if (likely(!parallel))
    return 0;
  take_lock();
  return 1;
}

ALWAYS_INLINE void end_alone(int is_locked) {
  if (unlikely(is_locked))
    drop_lock();
}

/*
 * Within an event, around calls of Ruby: what was looked up before is to be looked up
 * again. If one of them raises, the lock is free already.
 */
ALWAYS_INLINE int let_go(void) {
  if (likely(!parallel))
    return 0;
  drop_lock();
  return 1;
}

/* What an event may still be put to: hooks may have gone while it waited. */
static int is_on(void) { return alive->armed && state.hook; }
