/* The hook's counts, times, and histograms per method. */
#ifndef TRACEPOINT_HOOK_TABLES_H
#define TRACEPOINT_HOOK_TABLES_H

#include "clock.h"

ALWAYS_INLINE uint32_t bucket_of(uint64_t ns) {
  const uint64_t highest = 3600 * 1000000000ull;
  const uint32_t bits = state.bucket_bits;
  uint64_t v = ns < highest ? ns : highest;
  uint32_t b = 64 - bits - (uint32_t)__builtin_clzll(v | ((1u << bits) - 1)); /* bits to drop */
  return (b << (bits - 1)) + (uint32_t)(v >> b);
}

/* Eight consecutive parts of a method share a cache line. */
ALWAYS_INLINE uint32_t slot_of(uint32_t key) {
  uint32_t line = ((key >> 3) * 0x9e3779b1u) >> state.slots_shift;
  return line << 3 | ((key + (key >> PART_BITS)) & 7);
}

/* The step is odd, so it reaches every slot. */
ALWAYS_INLINE uint32_t slot_after(uint32_t slot) {
  return (slot + 9) & ((8u << (32 - state.slots_shift)) - 1);
}

ALWAYS_INLINE uint32_t block_of(uint32_t method, uint32_t part) {
  uint32_t key = method << PART_BITS | part;
  for (uint32_t i = slot_of(key);; i = slot_after(i)) {
    const struct slot *slot = &state.slots[i];
    if (unlikely(!slot->block))
      return new_block(method, part);
    if (likely(slot->key == key))
      return slot->block;
  }
}

/*
 * Most calls of a method take about as long as others before, so their block is among the
 * recent ones. Load it once: a process that maps the memory may change it after the check.
 */
ALWAYS_INLINE uint32_t recent_block(uint32_t method, uint32_t part) {
  uint32_t *recent = &state.methods[method].recent[part % 4];
  uint32_t found = __atomic_load_n(recent, __ATOMIC_RELAXED);
  uint32_t block = found & ((1u << BLOCK_BITS) - 1);
  if (unlikely(found >> BLOCK_BITS != part || !block || block >= state.blocks_used)) {
    block = block_of(method, part);
    STORE(*recent, part << BLOCK_BITS | block);
  }
  return block;
}

/* Return the index of a duration's counter among all blocks' counters; 0: no room. */
ALWAYS_INLINE uint32_t counter_of(uint32_t method, uint64_t ns) {
  if (!state.slots)
    return 0;
  uint32_t bucket = bucket_of(ns);
  uint32_t block = recent_block(method, bucket / BLOCK_COUNTERS);
  return likely(block) ? block * BLOCK_COUNTERS + bucket % BLOCK_COUNTERS : 0;
}

ALWAYS_INLINE void count_in(uint32_t number) {
  if (unlikely(!number))
    return;
  uint8_t *counter = &state.blocks[0][0] + number;
  uint8_t count = (uint8_t)(*counter + 1);
  if (likely(count))
    STORE(*counter, count);
  else
    carry(number / BLOCK_COUNTERS, number % BLOCK_COUNTERS);
}

/*
 * The counter's cache line is rarely in a cache, so it is prefetched now and incremented at
 * the stream's next return. A reader of the table adds the waiting counter in the meantime.
 */
ALWAYS_INLINE void count_later(struct stream *s, uint32_t number) {
  __builtin_prefetch(&state.blocks[0][0] + number, 1);
  RELEASE(s->shared->waiting, 0);
  count_in(s->waiting);
  RELEASE(s->shared->waiting, number);
  s->waiting = number;
}

/* Count a return, and return the index of its duration's counter. */
ALWAYS_INLINE uint32_t count_return(uint32_t index, uint64_t duration, uint64_t child,
                                    int outermost) {
  struct shared_method *method = &state.methods[index];
  ADD(method->calls, 1);
  ADD(method->sum, duration);
  ADD(method->self, ticks_since(child, duration));
  if (outermost)
    ADD(method->total, duration);
  if (unlikely(duration > method->max))
    STORE(method->max, duration);
  return counter_of(index, ns_of(duration));
}

#endif
