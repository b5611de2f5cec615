/* A stream's ring of records: one writer, and one untrusted reader. */
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
 * An open call whose ENTRY is in the ring has room reserved for its RETURN and for a LOST
 * record before it. A reader of an ENTRY therefore gets its RETURN, however full the ring is.
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

/* Return the number of records that must precede the next one. */
ALWAYS_INLINE uint64_t records_behind(const struct stream *s) {
  return (s->lost > 0) + (s->untold ? 3 : 0);
}

/* Append a record, after those that report its loss and its stack; return 0 if dropped. */
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
