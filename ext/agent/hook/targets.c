/*
 * Methods that are hooked one by one: a TracePoint each, which Ruby calls for that
 * method alone. agent/targets.rb switches them on and off; here is what they do.
 *
 * Up to Ruby 3.4 such a TracePoint is called in whichever Ractor calls the method, at the
 * same time as in others: nothing of ours may be touched there but one counter.
 */
#include "hook.h"

static uint64_t in_other_ractors;    /* events that were left out */
static uint16_t inside[UINT16_MAX + 1]; /* by target: evaluations under way in its hook */

/*
 * Ruby stops it from being freed while it is on; data is the target's number. One that
 * could not be switched off yet may meet an arming that hooks all methods, by itself.
 */
static void on_target(VALUE tracepoint, void *data) {
  if (!is_main_ractor()) {
    __atomic_fetch_add(&in_other_ractors, 1, __ATOMIC_RELAXED);
    return;
  }
  hook_function hook = state.hook;
  if (hook && state.config.flags & FLAG_TARGETS)
    hook((VALUE)data, rb_tracearg_from_tracepoint(tracepoint));
}

/* An evaluation lets other threads run, and they must not take its hook away. */
void enter_target(uint16_t target) { inside[target]++; }
void leave_target(uint16_t target) { inside[target]--; }

void tell_other_ractors(void) {
  uint64_t events = __atomic_load_n(&in_other_ractors, __ATOMIC_RELAXED);
  if (!state.header || !(state.config.flags & FLAG_TARGETS))
    return;
  events -= state.in_other_ractors_before;
  STORE(state.header->in_other_ractors, events);
  if (events)
    state.header->conditions |= CONDITION_OTHER_RACTORS;
}

void begin_targets(void) {
  state.in_other_ractors_before = __atomic_load_n(&in_other_ractors, __ATOMIC_RELAXED);
}

/* target(number): a TracePoint for one method, not switched on yet. */
VALUE native_target(VALUE self, VALUE number) {
  (void)self;
  uintptr_t target = (uint16_t)rb_num2ull(number);
  uint32_t events = has_entries_alone() ? EVENT_CALL : EVENT_CALL | EVENT_RETURN;
  return rb_tracepoint_new(0, events, on_target, (void *)target);
}

/* target_calls(number): how many calls are open that this target began. */
VALUE native_target_calls(VALUE self, VALUE number) {
  (void)self;
  uint16_t target = (uint16_t)rb_num2ull(number);
  uint64_t open = 0;
  for (uint32_t i = 0; state.streams && i < state.streams_used; i++)
    for (uint32_t j = 0; j < state.streams[i].depth; j++)
      open += state.streams[i].calls[j].target == target;
  return rb_ull2inum(open);
}

/*
 * target_over(number): it is switched off, so nobody tells of the returns of its calls.
 * Another target's call in the same place is then no duplicate, and ends them.
 */
VALUE native_target_over(VALUE self, VALUE number) {
  (void)self;
  uint16_t target = (uint16_t)rb_num2ull(number);
  for (uint32_t i = 0; state.streams && i < state.streams_used; i++)
    for (uint32_t j = 0; j < state.streams[i].depth; j++)
      if (state.streams[i].calls[j].target == target)
        state.streams[i].calls[j].target = NO_TARGET;
  return number;
}

/* target_inside(number): how many evaluations are under way in its hook. */
VALUE native_target_inside(VALUE self, VALUE number) {
  (void)self;
  return rb_ull2inum(inside[(uint16_t)rb_num2ull(number)]);
}

/* left_out: methods that came later could not be hooked one by one. */
VALUE native_left_out(VALUE self) {
  (void)self;
  if (state.header)
    state.header->conditions |= CONDITION_LEFT_OUT;
  return FALSE_VALUE;
}
