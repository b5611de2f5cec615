/* Functions that answer the agent's Ruby code. */
#include "clock.h"

VALUE native_best_clock(VALUE self) {
  (void)self;
  return rb_ull2inum(best_clock());
}

VALUE native_clock(VALUE self, VALUE clock) {
  (void)self;
  uint32_t kind = (uint32_t)rb_num2ull(clock);
  uint64_t best = UINT64_MAX, now = 0, ns = 0;
  for (int i = 0; i < 5; i++) { /* keep the pair with the least interruption */
    uint64_t before = ticks_of(kind), at = monotonic_ns(), after = ticks_of(kind);
    if (after - before < best) {
      best = after - before;
      now = before + best / 2;
      ns = at;
    }
  }
  VALUE pair = rb_ary_new();
  rb_ary_push(pair, rb_ull2inum(now));
  return rb_ary_push(pair, rb_ull2inum(ns));
}

/* The counters, in the order of the header. */
VALUE native_counters(VALUE self) {
  (void)self;
  if (!state.header)
    return FALSE_VALUE;
  const struct header *h = state.header;
  uint64_t counters[] = {h->state,     state.methods_used, state.blocks_used, state.streams_used,
                         h->conditions, h->no_stream,      h->no_method,      h->too_deep,
                         h->orphans,   h->abandoned,       h->no_block,    h->no_values,
                         h->mismatch,  h->in_other_ractors, h->duplicates};
  VALUE answer = rb_ary_new();
  for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
    rb_ary_push(answer, rb_ull2inum(counters[i]));
  return answer;
}

/* method_at(i): return [kind, class or false, name or false, defining class], or false. */
VALUE native_method_at(VALUE self, VALUE index) {
  (void)self;
  uint64_t i = rb_num2ull(index);
  if (!state.header || !i || i >= state.methods_used)
    return FALSE_VALUE;
  const struct known *known = &state.known[i];
  VALUE answer = rb_ary_new();
  ID id = known->id_and_kind >> 3;
  rb_ary_push(answer, rb_ull2inum(known->id_and_kind & 7));
  rb_ary_push(answer, known->owner);
  rb_ary_push(answer, id ? rb_id2sym(id) : FALSE_VALUE);
  return rb_ary_push(answer, known->definer);
}

/* refinement(module): return the refined class and the refining module, or nils. */
VALUE native_refinement(VALUE self, VALUE module) {
  (void)self;
  VALUE answer = rb_ary_new();
  if (!is_object(module) || type_of(module) != TYPE_MODULE)
    return answer;
  rb_ary_push(answer, rb_attr_get(module, rb_intern("__refined_class__")));
  return rb_ary_push(answer, rb_attr_get(module, rb_intern("__defined_at__")));
}

/* attached(class): return the object of a singleton class, or false. */
VALUE native_attached(VALUE self, VALUE klass) {
  (void)self;
  if (!is_object(klass) || !is_singleton(klass))
    return FALSE_VALUE;
  return attached_to(klass);
}

/* singleton(module): return its singleton class, or false if it has none. */
VALUE native_singleton(VALUE self, VALUE module) {
  (void)self;
  if (!is_object(module))
    return FALSE_VALUE;
  VALUE found = ((const struct basic *)module)->klass;
  return is_object(found) && is_singleton(found) && attached_to(found) == module ? found : FALSE_VALUE;
}

VALUE native_id_of(VALUE self, VALUE symbol) {
  (void)self;
  return rb_ull2inum(rb_to_id(symbol));
}

/* own(yes): set whether the calling thread belongs to the agent. */
VALUE native_own(VALUE self, VALUE yes) {
  (void)self;
  VALUE thread = rb_thread_current();
  for (int i = 0; i < MAX_OWN_THREADS; i++)
    if (own_threads[i] == thread)
      own_threads[i] = 0;
  for (int i = 0; i < MAX_OWN_THREADS && yes; i++)
    if (!own_threads[i]) {
      own_threads[i] = thread;
      break;
    }
  for (uint32_t i = 0; state.streams && i < state.streams_used; i++)
    if (state.streams[i].thread == thread)
      state.streams[i].ignored = yes != FALSE_VALUE;
  return yes;
}
