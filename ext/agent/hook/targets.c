/*
 * Methods that are hooked one by one, each with a TracePoint that Ruby calls for that
 * method only. agent/targets.rb enables and disables them; this file handles their events.
 *
 * Up to Ruby 3.4, such a TracePoint runs in any Ractor that calls the method, in parallel
 * with others. There it may touch only one counter of the agent.
 */
#include "hook.h"

static uint64_t in_other_ractors;    /* number of events that were left out */
static uint16_t inside[UINT16_MAX + 1]; /* by target: running evaluations in its hook */

/*
 * data is the target's number. Ruby does not free the TracePoint while it is enabled. A
 * target that could not be disabled yet may overlap a later arming that hooks all methods.
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

/* An evaluation lets other threads run; they must not remove its hook. */
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

/* target(number): return a TracePoint for one method, not enabled yet. */
VALUE native_target(VALUE self, VALUE number) {
  (void)self;
  uintptr_t target = (uint16_t)rb_num2ull(number);
  uint32_t events = has_entries_alone() ? EVENT_CALL : EVENT_CALL | EVENT_RETURN;
  return rb_tracepoint_new(0, events, on_target, (void *)target);
}

/* target_calls(number): return the number of open calls that this target reported. */
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
 * target_over(number): the target is disabled, so the returns of its calls are not reported.
 * A call of another target at the same place is then not a duplicate, and ends them.
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

/* target_inside(number): return the number of running evaluations in its hook. */
VALUE native_target_inside(VALUE self, VALUE number) {
  (void)self;
  return rb_ull2inum(inside[(uint16_t)rb_num2ull(number)]);
}

/* left_out: note that methods defined later could not be hooked one by one. */
VALUE native_left_out(VALUE self) {
  (void)self;
  if (state.header)
    state.header->conditions |= CONDITION_LEFT_OUT;
  return FALSE_VALUE;
}
