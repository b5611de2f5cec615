/* A stream's ring of records: one writer, and a reader who may lie. */

#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)
#define RELEASE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)

/* One writer: an add that is a load and a store, each whole. */
#define ADD(place, amount) STORE(place, (place) + (amount))

ALWAYS_INLINE int has_room(struct stream *s, uint64_t records) {
  if (likely(s->written + records - s->tail <= state.ring_mask + 1))
    return 1;
  uint64_t tail = __atomic_load_n(s->tail_of_reader, __ATOMIC_ACQUIRE);
  if (tail > s->tail && tail <= s->published)
    s->tail = tail;
  return s->written + records - s->tail <= state.ring_mask + 1;
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

NEVER_INLINE void drop(struct stream *s, uint32_t records) {
  s->lost += s->lost <= UINT32_MAX - records ? records : 0;
  s->dropped += records;
  if (state.config.mode == MODE_RING)
    STORE(s->shared->dropped, s->dropped);
}

/* Put a record, behind one that tells of the loss before it. */
ALWAYS_INLINE void put(struct stream *s, uint64_t time, uint32_t method,
                       uint32_t depth, uint8_t kind, uint8_t flags) {
  if (unlikely(s->lost)) {
    if (!has_room(s, 2)) {
      drop(s, 1);
      return;
    }
    append(s, time, s->lost, depth, RECORD_LOST, 0);
    s->lost = 0;
  } else if (unlikely(!has_room(s, 1))) {
    drop(s, 1);
    return;
  }
  append(s, time, method, depth, kind, flags);
}
