/* A stream's ring of records: one writer, and a reader who may lie. */
#ifndef TRACEPOINT_HOOK_RINGS_H
#define TRACEPOINT_HOOK_RINGS_H

#include "hook.h"

ALWAYS_INLINE int has_room(struct stream *s, uint64_t records) {
  if (likely(s->written + records - s->tail <= state.ring_mask + 1))
    return 1;
  uint64_t tail = __atomic_load_n(s->tail_of_reader, __ATOMIC_ACQUIRE);
  if (tail > s->tail && tail <= s->published)
    s->tail = tail;
  return s->written + records - s->tail <= state.ring_mask + 1;
}

/*
 * An open call whose entry stands has room for its return, and for what tells of a loss
 * before it: so whoever reads an entry gets its return, however full the ring is.
 */
enum { RESERVED = 2 };

ALWAYS_INLINE int has_free_room(struct stream *s, uint64_t records) {
  return has_room(s, records + (uint64_t)RESERVED * s->owed);
}

ALWAYS_INLINE void append(struct stream *s, uint64_t time, uint32_t method,
                          uint32_t depth, uint8_t kind, uint8_t flags) {
  struct record *record = &s->ring[s->written++ & state.ring_mask];
  uint64_t rest = (uint64_t)method |
                  (uint64_t)(depth < 0xffff ? depth : 0xffff) << 32 |
                  (uint64_t)kind << 48 | (uint64_t)flags << 56;
  record->time = time;
  __builtin_memcpy(&record->method, &rest, sizeof(rest));
}

ALWAYS_INLINE void publish(struct stream *s) {
  s->published = s->written;
  RELEASE(s->shared->published, s->written);
}

/* How many records have to stand before the next one. */
ALWAYS_INLINE uint64_t records_behind(const struct stream *s) {
  return (s->lost > 0) + (s->untold ? 3 : 0);
}

/* Put a record, behind what tells of the loss before it and of its stack; 0: dropped. */
ALWAYS_INLINE int put(struct stream *s, uint64_t time, uint32_t method,
                       uint32_t depth, uint8_t kind, uint8_t flags) {
  if (unlikely(s->behind) ? !catch_up(s, time, depth) : unlikely(!has_free_room(s, 1))) {
    drop(s, 1);
    return 0;
  }
  append(s, time, method, depth, kind, flags);
  return 1;
}

#endif
