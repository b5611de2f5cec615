/* Finds the stream of a thread or fiber. */
#ifndef TRACEPOINT_HOOK_STREAMS_H
#define TRACEPOINT_HOOK_STREAMS_H

#include "hook.h"

/* rb_execution_context_t begins with vm_stack in every version. */
ALWAYS_INLINE struct stream *stream_of(const struct trace_arg *arg) {
  const char *vm_stack = *(const char *const *)arg->ec;
  struct stream *s = state.current;
  if (likely(s && s->ec == arg->ec && s->vm_stack == vm_stack))
    return s;
  return switch_stream(arg, vm_stack);
}

#endif
