/*
 * Global variables with C getters, which a method's wrapper reads.
 *
 * A method call would cost the wrapper a frame. getglobal calls the getter
 * without a frame, which takes a third of the time, and the wrapper's frame
 * stays the current one, so the getter can read its block.
 */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <stddef.h>

/* data: address of the span's `self` */
static inline bool is_watched(const VALUE *data) {
  const tp_entry *span =
      (const tp_entry *)((const char *)data - offsetof(tp_entry, self));

  return TP_UNLIKELY(sdt_watched(span->probe) || sdt_watched(span->end)) &&
         !__atomic_load_n(&tp_off, __ATOMIC_RELAXED);
}

static VALUE watched(ID id, VALUE *data) {
  (void)id;
  return is_watched(data) ? Qtrue : Qfalse;
}

static VALUE watched_or_block(ID id, VALUE *data) {
  (void)id;
  return TP_UNLIKELY(is_watched(data)) || rb_block_given_p() ? Qtrue : Qfalse;
}

static VALUE block(ID id, VALUE *data) {
  (void)id;
  (void)data;
  return rb_block_given_p() ? rb_block_proc() : Qnil;
}

/*
 * Registry.watch(span, name, or_block): define $name, which is true while the
 * span is traced; with or_block, also if the reading method was given a block.
 */
static VALUE registry_watch(VALUE self, VALUE span, VALUE name,
                            VALUE or_block) {
  (void)self;
  rb_define_hooked_variable(StringValueCStr(name), &tp_entry_of(span)->self,
                            RTEST(or_block) ? watched_or_block : watched,
                            rb_gvar_readonly_setter);
  return Qnil;
}

void tp_init_method(VALUE module) {
  VALUE registry = rb_const_get(module, rb_intern("Registry"));

  rb_define_virtual_variable("$__tracepoint_block", block,
                             rb_gvar_readonly_setter);
  rb_define_singleton_method(registry, "watch", registry_watch, 3);
}
