/* The rarely used parts of a ring: losses and changes of the stack. */
#include "rings.h"

void drop(struct stream *s, uint32_t records) {
  s->lost += s->lost <= UINT32_MAX - records ? records : 0;
  s->dropped += records;
  if (state.config.mode == MODE_RING)
    STORE(s->shared->dropped, s->dropped);
}

const char *thread_of(const struct stream *s) {
  return state.config.ec_thread ? *(const char *const *)(s->ec + state.config.ec_thread) : NULL;
}

/* Append the records that the next one depends on, in the order that a reader needs. */
void tell(struct stream *s, uint64_t time, uint32_t depth) {
  if (s->lost)
    append(s, time, s->lost, s->untold ? 0 : depth, RECORD_LOST, 0);
  if (s->untold) {
    append(s, time, s->stack, 0, RECORD_STACK, 0);
    append(s, (uint64_t)s->ec, s->tid, 0, RECORD_PLACE, 0);
    append(s, (uint64_t)thread_of(s), 0, 0, RECORD_THREAD, 0);
  }
  s->behind = 0;
}

int catch_up(struct stream *s, uint64_t time, uint32_t depth) {
  if (!has_free_room(s, records_behind(s) + 1))
    return 0;
  tell(s, time, depth);
  return 1;
}
