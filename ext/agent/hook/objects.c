/* Garbage collections, and new objects. */
#include "clock.h"
#include "methods.h"
#include "rings.h"
#include "streams.h"
#include "tables.h"

static void record_apart(struct stream *s, uint64_t now, uint32_t method, uint8_t kind) {
  if (!s->ring)
    return;
  put(s, now, method, s->depth, kind, 0);
  if (state.config.mode == MODE_RING || s->depth == 0)
    publish(s);
}

static void gc_event(struct stream *s, int begins) {
  uint64_t now = ticks();
  record_apart(s, now, state.gc_method, begins ? RECORD_GC_BEGIN : RECORD_GC_END);
  if (begins) {
    state.gc_start = now;
    if (state.config.mode == MODE_TABLE)
      ADD(state.methods[state.gc_method].entries, 1);
    if (state.sites)
      site_gc_begin(s->ec);
    return;
  }
  if (!state.gc_start)
    return; /* armed during a collection */
  uint64_t duration = ticks_since(state.gc_start, now);
  state.gc_start = 0;
  if (state.config.mode == MODE_TABLE)
    count_in(count_return(state.gc_method, duration, 0, 1));
  if (state.sites)
    site_gc_end(s->ec, (int64_t)ns_of(duration));
}

/* Return 0 for internal objects; the class field of an imemo holds something else. */
static VALUE class_of_new(VALUE object) {
  if (!is_object(object) || type_of(object) >= TYPE_IMEMO)
    return 0;
  VALUE klass = ((const struct basic *)object)->klass;
  return is_object(klass) && type_of(klass) == TYPE_CLASS ? klass : 0;
}

static void object_event(struct stream *s, VALUE object) {
  VALUE owner = class_of_new(object);
  const struct key *method = key_of(owner, 0, KIND_OBJECT);
  if (state.config.mode == MODE_TABLE)
    ADD(state.methods[method->method].entries, 1);
  record_apart(s, ticks(), method->method, RECORD_OBJECT);
  if (state.sites)
    site_object(owner, object, s->ec);
}

/* True if inner events must not be hooked: agent/ractors.rb. */
int no_inner;

static void *ractor_key; /* has a value only in the main Ractor */

void know_main_ractor(void) {
  if (!ractor_key && rb_ractor_local_storage_ptr_newkey)
    ractor_key = rb_ractor_local_storage_ptr_newkey(NULL); /* nothing to mark or free */
  if (ractor_key)
    rb_ractor_local_storage_ptr_set(ractor_key, &ractor_key);
}

int is_main_ractor(void) {
  return !ractor_key || rb_ractor_local_storage_ptr(ractor_key);
}

/*
 * Ruby accepts hooks on its inner events only separately from others. From 4.0 on, it calls
 * them in every Ractor, not only in the main one.
 */
void hook_inner(VALUE data, const struct trace_arg *arg) {
  (void)data;
  if (!alive->armed || !is_main_ractor())
    return;
  struct stream *s = stream_of(arg);
  int is_made = arg->event == EVENT_NEWOBJ;
  if (!s || (s->ignored && is_made))
    state.beats++;
  else if (is_made)
    object_event(s, arg->data);
  else
    gc_event(s, arg->event == EVENT_GC_ENTER);
}
