/* Streams of threads and fibers: creation, switches, reuse. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "memory.h"
#include "rings.h"

size_t calls_size(void) { return MAX_DEPTH * sizeof(struct call); }

size_t active_size(void) {
  return state.config.max_methods * sizeof(uint32_t);
}

void abandon(struct stream *s) {
  const struct call *call = &s->calls[--s->depth];
  if (state.config.mode == MODE_TABLE)
    s->active[call->method]--;
  if (s->ring)
    s->owed -= !call->left_out;
  ADD(state.header->abandoned, 1);
}

/* Announce the stack now if there is room, else before the next record that fits. */
static void tell_stack(struct stream *s) {
  s->tid = (uint32_t)syscall(SYS_gettid);
  s->stack = ++state.stacks;
  STORE(s->shared->ec, (uint64_t)s->ec);
  STORE(s->shared->thread, (uint64_t)thread_of(s));
  STORE(s->shared->tid, s->tid);
  STORE(s->shared->stack, s->stack);
  if (!s->ring)
    return;
  s->untold = 1;
  if (!has_room(s, records_behind(s)))
    return;
  tell(s, ticks(), 0);
  publish(s);
}

static int is_own_thread(VALUE thread) {
  for (int i = 0; i < MAX_OWN_THREADS; i++)
    if (own_threads[i] == thread)
      return 1;
  return 0;
}

static void give_to(struct stream *s, const char *ec, const char *vm_stack) {
  while (s->depth)
    abandon(s);
  if (s->ring && s->written != s->published)
    s->written = s->published; /* drop a tree that will not be completed */
  s->ec = ec;
  s->vm_stack = vm_stack;
  s->thread = rb_thread_current();
  s->ignored = is_own_thread(s->thread);
  tell_stack(s);
}

static struct stream *new_stream(void) {
  struct stream *s = &state.streams[state.streams_used];
  char *memory = map_private(calls_size() + active_size());
  if (!memory)
    return NULL;
  s->calls = (struct call *)memory;
  s->active = (uint32_t *)(memory + calls_size());
  RELEASE(state.header->streams, ++state.streams_used);
  return s;
}

/* Return the stream that was idle longest, preferably one without open calls. */
static struct stream *oldest_stream(void) {
  struct stream *found = NULL;
  for (uint32_t i = 0; i < state.streams_used; i++) {
    struct stream *s = &state.streams[i];
    if (!found || (s->depth == 0) > (found->depth == 0) ||
        ((s->depth == 0) == (found->depth == 0) && s->stamp < found->stamp))
      found = s;
  }
  return found;
}

enum { FUTEX_CMP_REQUEUE_PRIVATE = 4 | 128, MOST_LOOKS = 32 };

/*
 * Return whether the stream's stack has ended. Ruby then clears the field that held vm_stack.
 * Later the memory may be reused or unmapped, so the kernel makes the comparison: it accepts
 * an invalid address, and the call needs no permission. The vm_stack of a live stack never
 * changes.
 */
static int has_ended(const struct stream *s) {
  static uint32_t unused;
  int before = errno;
  long found = syscall(SYS_futex, s->ec, FUTEX_CMP_REQUEUE_PRIVATE, 0L, 0L, &unused,
                       (uint32_t)(uintptr_t)s->vm_stack);
  int ended = found < 0 && (errno == EAGAIN || errno == EFAULT);
  errno = before;
  return ended;
}

/*
 * Return a stream whose stack has ended and whose ring has room for `room` records: the
 * program has already paid for its pages. Live streams keep their rings and numbers.
 */
static struct stream *ended_stream(uint64_t room) {
  for (uint32_t i = 0; i < MOST_LOOKS && i < state.streams_used; i++) {
    struct stream *s = &state.streams[state.looks++ % state.streams_used];
    if ((!s->ring || has_room(s, room)) && has_ended(s))
      return s;
  }
  return NULL;
}

struct stream *switch_stream(const struct trace_arg *arg, const char *vm_stack) {
  const char *ec = arg->ec;
  struct stream *s = NULL;
  for (uint32_t i = 0; i < state.streams_used && !s; i++)
    if (state.streams[i].ec == ec)
      s = &state.streams[i];
  if (!s) {
    /* The agent's short-lived threads take no streams from the program. */
    if (state.streams_used == state.config.max_streams && is_own_thread(rb_thread_current()))
      return NULL;
    s = ended_stream((state.ring_mask + 1) / 2);
    if (!s && state.streams_used < state.config.max_streams)
      s = new_stream();
    if (!s)
      s = ended_stream(0);
    if (!s && state.streams_used == state.config.max_streams)
      state.header->conditions |= CONDITION_STREAMS_FULL;
    if (!s)
      s = oldest_stream();
    if (!s) {
      ADD(state.header->no_stream, 1);
      return NULL;
    }
    give_to(s, ec, vm_stack);
  } else if (s->vm_stack != vm_stack || (s->depth && !has_same_frames(s, arg))) {
    give_to(s, ec, vm_stack);
  }
  s->stamp = ++state.switches;
  state.current = s;
  return s;
}
