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

/* How many records have to stand before the next one. */
ALWAYS_INLINE uint64_t records_behind(const struct stream *s) {
  return (s->lost > 0) + (s->untold ? 3 : 0);
}

static const char *thread_of(const struct stream *s) {
  return state.config.ec_thread ? *(const char *const *)(s->ec + state.config.ec_thread) : NULL;
}

/* What the next record cannot do without, in the order of a reader's needs. */
static void tell(struct stream *s, uint64_t time, uint32_t depth) {
  if (s->lost)
    append(s, time, s->lost, s->untold ? 0 : depth, RECORD_LOST, 0);
  if (s->untold) {
    append(s, time, s->stack, 0, RECORD_STACK, 0);
    append(s, (uint64_t)s->ec, s->tid, 0, RECORD_PLACE, 0);
    append(s, (uint64_t)thread_of(s), 0, 0, RECORD_THREAD, 0);
  }
  s->behind = 0;
}

NEVER_INLINE int catch_up(struct stream *s, uint64_t time, uint32_t depth) {
  if (!has_room(s, records_behind(s) + 1))
    return 0;
  tell(s, time, depth);
  return 1;
}

/* Put a record, behind what tells of the loss before it and of its stack. */
ALWAYS_INLINE void put(struct stream *s, uint64_t time, uint32_t method,
                       uint32_t depth, uint8_t kind, uint8_t flags) {
  if (unlikely(s->behind) ? !catch_up(s, time, depth) : unlikely(!has_room(s, 1))) {
    drop(s, 1);
    return;
  }
  append(s, time, method, depth, kind, flags);
}
