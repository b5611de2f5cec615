/* Time in ticks of the processor's counter, or in nanoseconds. */
#ifndef TRACEPOINT_HOOK_CLOCK_H
#define TRACEPOINT_HOOK_CLOCK_H

#include <time.h>

#include "hook.h"

static inline uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

ALWAYS_INLINE uint64_t ticks_of(uint32_t clock) {
#if defined(__x86_64__)
  if (likely(clock == CLOCK_TSC))
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (likely(clock == CLOCK_CNTVCT)) {
    uint64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
  }
#endif
  return monotonic_ns();
}

ALWAYS_INLINE uint64_t ticks(void) { return ticks_of(state.config.clock); }

/* Counters of two processors may differ by a few ticks. */
ALWAYS_INLINE uint64_t ticks_since(uint64_t start, uint64_t now) {
  return likely(now > start) ? now - start : 0;
}

ALWAYS_INLINE uint64_t ns_of(uint64_t ticks) {
  return (uint64_t)(((unsigned __int128)ticks * state.config.mult) >> 32);
}

#endif
