/* Counts, times and histograms of each method, kept by the hook. */
#ifndef TRACEPOINT_HOOK_TABLES_H
#define TRACEPOINT_HOOK_TABLES_H

#include "clock.h"

ALWAYS_INLINE uint32_t bucket_of(uint64_t ns) {
  const uint64_t highest = 3600 * 1000000000ull;
  uint64_t v = ns < highest ? ns : highest;
  uint32_t b = 53 - (uint32_t)__builtin_clzll(v | 2047); /* bits beyond 11 */
  return (b << 10) + (uint32_t)(v >> b);
}

ALWAYS_INLINE void count_duration(uint32_t method, uint64_t ns) {
  if (!state.directory)
    return;
  uint32_t bucket = bucket_of(ns);
  uint32_t *entry = &state.directory[(size_t)method * BLOCKS_A_METHOD + bucket / BLOCK_COUNTERS];
  /* Loaded once: who has mapped it may change it after the check. */
  uint32_t block = __atomic_load_n(entry, __ATOMIC_RELAXED);
  if (unlikely(!block) && !(block = new_block(entry)))
    return;
  if (unlikely(block >= state.config.max_blocks))
    return; /* not what we wrote */
  ADD(state.blocks[block][bucket % BLOCK_COUNTERS], 1);
}

ALWAYS_INLINE void count_return(uint32_t index, uint64_t duration, uint64_t child, int outermost) {
  struct shared_method *method = &state.methods[index];
  ADD(method->calls, 1);
  ADD(method->sum, duration);
  ADD(method->self, ticks_since(child, duration));
  if (outermost)
    ADD(method->total, duration);
  if (duration > method->max)
    STORE(method->max, duration);
  count_duration(index, ns_of(duration));
}

#endif
