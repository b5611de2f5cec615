/* Calls and returns: the open frames, and the work of each mode. */
#include "clock.h"
#include "methods.h"
#include "rings.h"
#include "streams.h"
#include "tables.h"

/*
 * Return a key that orders frames. Ruby reports a C call before its frame exists, and the
 * return after removing the frame. Its key is therefore just below its caller's.
 */
ALWAYS_INLINE uint64_t key_of_frame(const struct trace_arg *arg, int is_c) {
  return (uint64_t)arg->cfp - (uint64_t)is_c;
}

/* A call without an ENTRY is left out with all its callees, so there is one gap, here. */
ALWAYS_INLINE void put_entry(struct stream *s, struct call *call, uint8_t kind,
                             const struct values *values) {
  if (unlikely(s->depth && call[-1].left_out)) {
    call->left_out = 1;
    drop(s, 1);
    return;
  }
  s->owed++;
  call->left_out = !(unlikely(values)
                         ? put_with_values(s, call->start, call->method, s->depth, kind, values)
                         : put(s, call->start, call->method, s->depth, kind, 0));
  s->owed -= call->left_out;
}

/* has_free_room has reserved the room, and no longer counts it. */
ALWAYS_INLINE void put_return(struct stream *s, const struct call *call, uint64_t now) {
  if (unlikely(call->left_out))
    drop(s, 1);
  else
    put(s, now, call->method, s->depth, call->is_c ? RECORD_C_RETURN : RECORD_RETURN, 0);
}

ALWAYS_INLINE void open_call(struct stream *s, const struct trace_arg *arg,
                             const struct key *method, const struct values *values,
                             int mode, int is_c, uint16_t target) {
  uint64_t key = key_of_frame(arg, is_c);
  if (unlikely(!method->method))
    ADD(state.header->no_method, 1);
  if (mode == MODE_ENTRIES) {
    ADD(state.methods[method->method].entries, 1);
    return;
  }
  if (unlikely(s->depth == MAX_DEPTH)) {
    ADD(state.header->too_deep, 1);
    return;
  }
  struct call *call = &s->calls[s->depth];
  call->key = key;
  call->method = method->method;
  call->is_c = (uint8_t)is_c;
  call->target = target;
  call->child = 0;
  if (mode == MODE_TABLE) {
    ADD(state.methods[method->method].entries, 1);
    s->active[method->method]++;
  }
  if (mode == MODE_SLOW) {
    call->at = s->written;
    call->lost = s->lost;
    call->untold = (uint8_t)s->untold;
    call->dropped = (uint32_t)s->dropped;
    if (state.config.flags & FLAG_CPU)
      call->cpu = thread_cpu_ns();
  }
  uint64_t now = ticks();
  call->start = now;
  uint8_t kind = is_c ? RECORD_C_ENTRY : RECORD_ENTRY;
  if (mode == MODE_RING || mode == MODE_SLOW)
    put_entry(s, call, kind, values);
  if (mode == MODE_RING)
    publish(s);
  if (unlikely(state.sites))
    (is_c ? site_c_entry : site_entry)(method->owner, method->id_and_kind >> 3, s->ec, s->depth);
  s->depth++;
}

ALWAYS_INLINE int has_above(const struct stream *s, uint64_t key) {
  return unlikely(s->depth && s->calls[s->depth - 1].key <= key);
}

ALWAYS_INLINE void abandon_above(struct stream *s, const struct trace_arg *arg, int is_c) {
  while (has_above(s, key_of_frame(arg, is_c)))
    abandon(s);
}

/*
 * Return whether another target has already reported this event of the frame. The slot at
 * this depth holds the call that is open there or has just returned.
 */
NEVER_INLINE int is_duplicate(const struct stream *s, uint32_t depth,
                              const struct trace_arg *arg, uint16_t target) {
  const struct call *call = &s->calls[depth];
  if (!(state.config.flags & FLAG_TARGETS) || depth == MAX_DEPTH || call->is_c ||
      call->key != (uint64_t)arg->cfp || call->target == target ||
      call->target == NO_TARGET)
    return 0;
  const struct key *method = method_of(arg, KIND_RUBY);
  return method && method->method == call->method;
}

/*
 * Evaluating runs Ruby code: other threads and fibers, the garbage collector, and even this
 * code, to disarm and arm. Evaluate first, and look everything up afterwards.
 */
NEVER_INLINE void enter_evaluating(const struct trace_arg *arg, const struct key *method,
                                   int mode, int is_c, uint16_t target) {
  struct values values;
  uint64_t before = arming;
  enter_target(target);
  int left = evaluate(arg, method->program, is_c, &values);
  leave_target(target);
  struct stream *s = NULL;
  if (alive->armed && arming == before)
    s = stream_of(arg);
  if (s && !s->ignored) {
    abandon_above(s, arg, is_c);
    open_call(s, arg, method, &values, mode, is_c, target);
  }
  if (left)
    rb_jump_tag(left);
}

ALWAYS_INLINE void enter(struct stream *s, const struct trace_arg *arg, int mode, int is_c,
                         uint16_t target) {
  if (has_above(s, key_of_frame(arg, is_c))) {
    if (!is_c && is_duplicate(s, s->depth - 1, arg, target)) {
      ADD(state.header->duplicates, 1);
      return;
    }
    abandon_above(s, arg, is_c);
  }
  const struct key *method = method_of(arg, is_c ? KIND_C : KIND_RUBY);
  if (unlikely(!method) || !method->selected)
    return;
  if ((mode == MODE_RING || mode == MODE_SLOW) && unlikely(method->program))
    enter_evaluating(arg, method, mode, is_c, target);
  else
    open_call(s, arg, method, NULL, mode, is_c, target);
}

/*
 * A fast call's records were taken back, but an enclosing call may still be slow. Append the
 * garbage collections among the records again, as the enclosing call's. They need no more
 * room than before, so each record is read before it is overwritten.
 */
NEVER_INLINE void keep_collections(struct stream *s, uint64_t at, uint64_t end) {
  for (; at < end; at++) {
    struct record record = s->ring[at & state.ring_mask];
    if (record.kind == RECORD_GC_BEGIN || record.kind == RECORD_GC_END)
      put(s, record.time, record.method, s->depth, record.kind, 0);
  }
}

/* The call at s->depth has returned: keep its records, or take them all back. */
NEVER_INLINE void settle(struct stream *s, struct call *call, uint64_t now, uint64_t duration) {
  int whole = state.config.flags & FLAG_WHOLE;
  uint64_t cpu = 0;
  uint64_t measured = ns_of(duration);
  if (state.config.flags & FLAG_CPU)
    measured = cpu = ticks_since(call->cpu, thread_cpu_ns());
  int slow = measured >= state.config.threshold_ns;
  s->owed -= !call->left_out;
  if (!slow && call->at >= s->published && (!whole || s->depth == 0)) {
    uint64_t end = s->written;
    s->written = call->at;
    s->lost = call->lost;
    s->untold = call->untold;
    s->dropped -= (uint32_t)((uint32_t)s->dropped - call->dropped);
    if (s->depth && unlikely(end - call->at > 1))
      keep_collections(s, call->at, end);
    return;
  }
  put_return(s, call, now);
  if ((state.config.flags & FLAG_CPU) && !s->behind) /* CPU must directly follow RETURN */
    put(s, cpu, call->method, s->depth, RECORD_CPU, 0);
  /* Calls around a slow call are slow; a whole tree is slow if its root is. */
  if (whole) {
    const struct call *root = s->depth ? &s->calls[0] : call;
    if (root->at >= s->published)
      slow = state.config.flags & FLAG_CPU
                 ? ticks_since(root->cpu, call->cpu + cpu) >= state.config.threshold_ns
                 : ns_of(ticks_since(root->start, now)) >= state.config.threshold_ns;
    else
      slow = 1;
  }
  if (slow) {
    publish(s);
    STORE(s->shared->dropped, s->dropped);
  }
}

ALWAYS_INLINE void leave(struct stream *s, int mode) {
  struct call *call = &s->calls[--s->depth];
  uint64_t now = ticks();
  uint64_t duration = ticks_since(call->start, now);
  if (mode == MODE_TABLE) {
    int outermost = --s->active[call->method] == 0;
    count_later(s, count_return(call->method, duration, call->child, outermost));
    if (s->depth)
      s->calls[s->depth - 1].child += duration;
  } else if (mode == MODE_RING) {
    s->owed -= !call->left_out;
    put_return(s, call, now);
    publish(s);
  } else if (mode == MODE_SLOW) {
    settle(s, call, now, duration);
    STORE(s->shared->written, s->written);
  }
  if (unlikely(state.sites)) {
    const struct shared_method *method = &state.methods[call->method];
    (call->is_c ? site_c_return : site_return)(method->owner, method->id, s->ec, s->depth,
                                               (int64_t)ns_of(duration));
  }
}

enum { FRAMES_NEAR = 128 }; /* a control frame is 56 or 64 bytes */

/*
 * Return the index plus 1 of the open call that returns here, or 0.
 *
 * Up to Ruby 3.0, a method made of a block may report its return after its frame was removed.
 * A C method that is unwound may report it while its frame still exists. Such events name
 * their method, so a nearby frame is accepted if its method is the same.
 */
static uint32_t find_call(const struct stream *s, uint64_t key, const struct key *method) {
  for (uint32_t i = s->depth; i > 0; i--) {
    const struct call *call = &s->calls[i - 1];
    if (call->key > key + FRAMES_NEAR)
      return 0;
    if (!method ? call->key == key
                : call->method == method->method && call->key + FRAMES_NEAR >= key)
      return i;
  }
  return 0;
}

NEVER_INLINE void leave_orphan(struct stream *s, const struct key *method, int mode, int is_c) {
  ADD(state.header->orphans, 1);
  if (mode == MODE_RING) {
    put(s, ticks(), method->method, 0, is_c ? RECORD_C_RETURN : RECORD_RETURN, RECORD_ORPHAN);
    publish(s);
  }
  if (state.sites)
    (is_c ? site_c_return : site_return)(method->owner, method->id_and_kind >> 3, s->ec, 0, -1);
}

NEVER_INLINE void leave_other(struct stream *s, const struct trace_arg *arg, int mode, int is_c,
                              uint16_t target) {
  uint64_t key = key_of_frame(arg, is_c);
  if (!arg->klass && s->depth && s->calls[s->depth - 1].key > key)
    return; /* inside a recorded call, but not recorded itself */
  const struct key *method = NULL;
  if (arg->klass) {
    method = method_of(arg, is_c ? KIND_C : KIND_RUBY);
    if (!method->selected)
      return;
  }
  uint32_t found = find_call(s, key, method);
  if (found) {
    while (s->depth > found)
      abandon(s);
    leave(s, mode);
    return;
  }
  if (!method)
    method = method_of(arg, KIND_RUBY);
  if (method && method->selected && !(s->depth && s->calls[s->depth - 1].key > key) &&
      (is_c || !is_duplicate(s, s->depth, arg, target)))
    leave_orphan(s, method, mode, is_c);
}

NEVER_INLINE void raised(struct stream *s, const struct trace_arg *arg, int mode) {
  if (!is_object(arg->data))
    return;
  VALUE owner = rb_obj_class(arg->data);
  const struct key *method = key_of(owner, 0, KIND_RAISE);
  if (mode == MODE_TABLE || mode == MODE_ENTRIES)
    ADD(state.methods[method->method].entries, 1);
  if (s->ring) {
    put(s, ticks(), method->method, s->depth, RECORD_RAISE, 0);
    if (mode == MODE_RING || s->depth == 0)
      publish(s);
  }
  if (state.sites)
    site_raise(owner, arg->data, s->ec);
}

/* C functions and exceptions cost more anyway: keep them off the path of methods. */
NEVER_INLINE void other_event(struct stream *s, const struct trace_arg *arg, int mode,
                              uint16_t target) {
  switch (arg->event) {
  case EVENT_C_CALL:
    enter(s, arg, mode, 1, target);
    break;
  case EVENT_C_RETURN:
    if (!state.selecting || s->depth)
      leave_other(s, arg, mode, 1, target);
    break;
  case EVENT_RAISE:
    raised(s, arg, mode);
    break;
  }
}

ALWAYS_INLINE void on_event(const struct trace_arg *arg, int mode, uint16_t target) {
  if (unlikely(!alive->armed) || (unlikely(state.to_check) && !is_checked(arg)))
    return;
  struct stream *s = stream_of(arg);
  if (unlikely(!s || s->ignored)) {
    state.beats++;
    return;
  }
  if (likely(arg->event == EVENT_CALL)) {
    enter(s, arg, mode, 0, target);
  } else if (likely(arg->event == EVENT_RETURN)) {
    if (likely(!arg->klass && s->depth && s->calls[s->depth - 1].key == (uint64_t)arg->cfp))
      leave(s, mode);
    else if (!state.selecting || s->depth)
      leave_other(s, arg, mode, 0, target);
  } else {
    other_event(s, arg, mode, target);
  }
}

/* data: the number of the target; constant for the global hook */
static void hook_empty(VALUE data, const struct trace_arg *arg) {
  (void)data;
  (void)arg;
}

static void hook_ring(VALUE data, const struct trace_arg *arg) {
  on_event(arg, MODE_RING, (uint16_t)data);
}

static void hook_table(VALUE data, const struct trace_arg *arg) {
  on_event(arg, MODE_TABLE, (uint16_t)data);
}

static void hook_slow(VALUE data, const struct trace_arg *arg) {
  on_event(arg, MODE_SLOW, (uint16_t)data);
}

static void hook_sites(VALUE data, const struct trace_arg *arg) {
  on_event(arg, MODE_SITES, (uint16_t)data);
}

static void hook_entries(VALUE data, const struct trace_arg *arg) {
  on_event(arg, MODE_ENTRIES, (uint16_t)data);
}

/* Indexed by enum mode. */
const hook_function hooks[] = {hook_empty, hook_ring,  hook_table,
                               hook_slow,  hook_sites, hook_entries};
