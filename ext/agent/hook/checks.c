/* Checks the first events against Ruby's own functions, and disarms the hook if they differ. */
#include "frames.h"

void remove_hooks(void) {
  if (state.hook)
    rb_remove_event_hook_with_data(state.hook, marker);
  if (state.inner)
    rb_remove_event_hook_with_data(state.inner, marker);
  state.hook = state.inner = NULL;
}

/* Disarm after a mismatch, and read nothing more. */
NEVER_INLINE void disarm_for(enum mismatch mismatch) {
  state.header->mismatch = mismatch;
  state.header->conditions |= CONDITION_MISMATCH;
  remove_hooks();
  RELEASE(state.header->state, STATE_DISARMED);
}

/* In every version, rb_execution_context_t begins with vm_stack and its size in words. */
static int is_in_stack(const char *cfp, const char *ec) {
  const uintptr_t *stack = (const uintptr_t *)ec;
  return (uintptr_t)cfp - stack[0] < stack[1] * sizeof(VALUE);
}

/* Return whether event, self, and control frame equal the results of Ruby's functions. */
int is_checked(const struct trace_arg *arg) {
  struct trace_arg *theirs = (struct trace_arg *)arg;
  state.to_check--;
  if (arg->event != rb_tracearg_event_flag(theirs))
    disarm_for(MISMATCH_EVENT);
  else if (arg->self != rb_tracearg_self(theirs))
    disarm_for(MISMATCH_SELF);
  else if (!is_in_stack(arg->cfp, arg->ec))
    disarm_for(MISMATCH_FRAME);
  return state.hook != NULL;
}

/* Read a frame's method, and compare it with Ruby's answer; return 0 also if they differ. */
int verified_method(const struct trace_arg *arg, VALUE *owner, ID *id) {
  VALUE owner_of_theirs = 0;
  ID id_of_theirs = 0;
  int found = method_of_frame(arg->cfp, owner, id);
  int is = rb_frame_method_id_and_class(&id_of_theirs, &owner_of_theirs) != 0;
  VALUE name = rb_tracearg_method_id((struct trace_arg *)arg);
  state.to_verify--;
  if (found == is && is == (name != nil_value) &&
      (!is || (*owner == owner_of_theirs && *id == id_of_theirs && *id == rb_to_id(name))))
    return is;
  disarm_for(MISMATCH_METHOD);
  return 0;
}
