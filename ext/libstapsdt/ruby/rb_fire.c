/* Firing an event: the fast path and the slow path. */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <alloca.h>
#include <string.h>

static VALUE sym_event;

bool tp_fire(const tp_entry *entry, const sdt_probe *probe, const VALUE *argv,
             int count, uint64_t *operands, int lead, bool strict) {
  bool converted = false;

  for (int i = 0; i < count; i++) {
    uint64_t *operand = &operands[lead + i];
    tp_text text;
    tp_fit fit = tp_convert(argv[i], (sdt_type)entry->types[i], strict, operand,
                            &text);

    if (TP_LIKELY(fit == TP_FITS))
      continue;
    if (fit == TP_UNTERMINATED) {
      size_t length = text.length < TP_COPY_MAX ? text.length : TP_COPY_MAX - 1;
      char *copy = alloca(length + 1);

      memcpy(copy, text.start, length);
      copy[length] = 0;
      *operand = (uint64_t)(uintptr_t)copy;
      converted |= length < text.length;
      continue;
    }
    if (strict)
      tp_raise_unfit(entry, i, argv[i], fit);
    converted = true;
  }
  if (!tp_traced(probe))
    return false;
  if (converted)
    tp_count(TP_CONVERTED);
  if (!entry->dead)
    sdt_fire(probe, operands);
  if (TP_UNLIKELY(tp_capturing()))
    tp_capture(entry, operands, lead, count);
  return true;
}

static VALUE fire_values(tp_entry *entry, const VALUE *argv) {
  uint64_t operands[SDT_MAX_OPERANDS];
  VALUE values[SDT_MAX_OPERANDS];

  if (entry->undeclared) {
    for (int i = 0; i < entry->count; i++)
      values[i] = argv[i];
    tp_learn(entry, values);
    if (tp_strict || tp_traced(entry->probe))
      tp_stringify(entry, values);
    argv = values;
  }
  return tp_fire(entry, entry->probe, argv, entry->count, operands, 0,
                 tp_strict)
             ? Qtrue
             : Qfalse;
}

static VALUE call_block(VALUE unused) {
  (void)unused;
  return rb_yield_values(0);
}

static VALUE block_raised(VALUE unused, VALUE error) {
  (void)unused;
  (void)error;
  return Qundef;
}

/*
 * A block that computes arguments must not break the program only because it
 * is traced. An error therefore only drops the event, even SystemStackError
 * and the ScriptErrors NotImplementedError and LoadError. Other ways to leave
 * the block are intentional: throw, break, return, exit, Interrupt, and
 * Thread#kill pass through. So does NoMemoryError.
 */
static VALUE values_of_block(bool strict) {
  if (strict)
    return call_block(Qnil);
  return rb_rescue2(call_block, Qnil, block_raised, Qnil, rb_eStandardError,
                    rb_eScriptError, rb_eSysStackError, (VALUE)0);
}

static VALUE fire_block(tp_entry *entry) {
  bool strict = tp_strict;
  VALUE values, ret;
  const VALUE *argv;
  long count;

  if (!strict && !tp_traced(entry->probe))
    return Qfalse;
  values = values_of_block(strict);
  if (values == Qundef) {
    tp_count(TP_DROPPED);
    return Qfalse;
  }
  if (entry->count == 0) { /* the probe needs no values of the block */
    count = 0;
    argv = NULL;
  } else if (RB_TYPE_P(values, T_ARRAY)) {
    count = RARRAY_LEN(values);
    argv = RARRAY_CONST_PTR(values);
  } else {
    count = 1;
    argv = &values;
  }
  if (count != entry->count) {
    if (strict)
      tp_raise_arity(entry, (int)count);
    tp_count(TP_DROPPED);
    return Qfalse;
  }
  ret = fire_values(entry, argv);
  RB_GC_GUARD(values);
  return ret;
}

static VALUE fire_undeclared(tp_entry *entry, int argc, const VALUE *argv) {
  VALUE values[SDT_MAX_OPERANDS];

  if (tp_arrange(entry, argc, argv, values))
    return fire_values(entry, values);
  tp_drop(entry, argc);
  return Qfalse;
}

static VALUE fire_span(const tp_entry *entry) {
  if (!entry->undeclared || tp_strict)
    rb_raise(rb_eArgError, "%" PRIsVALUE " is a span: it is measured, not fired",
             entry->self);
  tp_count(TP_DROPPED);
  return Qfalse;
}

/* Handles every fire except untraced ones with the right argument count. */
TP_COLD static VALUE fire_slowly(tp_entry *entry, int argc, const VALUE *argv) {
  if (entry->end)
    return fire_span(entry);
  if (argc == 0 && rb_block_given_p())
    return fire_block(entry);
  if (entry->undeclared)
    return fire_undeclared(entry, argc, argv);
  if (argc != entry->count)
    tp_raise_arity(entry, argc);
  return fire_values(entry, argv);
}

/*
 * The untraced fire with a block. It is separate and tried last, so calls with
 * arguments do not pay for the check for a block.
 */
__attribute__((noinline)) static VALUE skip_block(tp_entry *entry) {
  if (TP_LIKELY(rb_block_given_p()) && !entry->end)
    return Qfalse;
  return fire_slowly(entry, 0, NULL);
}

static inline VALUE fire(tp_entry *entry, int argc, const VALUE *argv) {
  if (TP_LIKELY(!sdt_watched(entry->probe))) {
    if (TP_LIKELY(argc == entry->fire_arity))
      return Qfalse;
    if (argc == 0)
      return skip_block(entry);
  }
  return fire_slowly(entry, argc, argv);
}

static VALUE probe_fire(int argc, VALUE *argv, VALUE self) {
  return fire(tp_entry_of(self), argc, argv);
}

static VALUE entry_enabled_p(VALUE self) {
  const tp_entry *entry = tp_entry_of(self);

  if (TP_UNLIKELY(sdt_watched(entry->probe)) && tp_traced(entry->probe))
    return Qtrue;
  if (entry->end && TP_UNLIKELY(sdt_watched(entry->end)) &&
      tp_traced(entry->end))
    return Qtrue;
  return Qfalse;
}

TP_COLD static VALUE fire_first(int argc, VALUE *argv, VALUE self) {
  tp_entry *entry;

  if (argc == 1 && rb_block_given_p())
    rb_raise(rb_eArgError,
             "no probe %" PRIsVALUE ": the block form needs one that is "
             "defined (Tracepoint.define)",
             argv[0]);
  entry = tp_declare(self, sym_event, argc, argv);
  return entry ? fire(entry, argc - 1, argv + 1) : Qfalse;
}

/* Not inlined: fires by Symbol should be fastest. */
__attribute__((noinline)) static VALUE fire_by_text(int argc, VALUE *argv,
                                                    VALUE self) {
  tp_entry *entry;

  if (argc == 0)
    rb_raise(rb_eArgError,
             "wrong number of arguments (given 0, expected 1+)");
  entry = tp_find(argv[0]);
  if (TP_UNLIKELY(!entry))
    return fire_first(argc, argv, self);
  return fire(entry, argc - 1, argv + 1);
}

static VALUE module_fire(int argc, VALUE *argv, VALUE self) {
  if (TP_LIKELY(argc > 0)) {
    tp_entry *entry = tp_find_symbol(argv[0]);

    if (TP_LIKELY(entry != NULL))
      return fire(entry, argc - 1, argv + 1);
  }
  return fire_by_text(argc, argv, self);
}

static VALUE module_enabled_p(VALUE self, VALUE name) {
  const tp_entry *entry = tp_find_symbol(name);

  (void)self;
  if (!entry && !SYMBOL_P(name) && !RB_TYPE_P(name, T_STRING))
    rb_raise(rb_eTypeError,
             "a probe's name must be a Symbol or a String, not %" PRIsVALUE,
             rb_obj_class(name));
  if (!entry)
    entry = tp_find(name);
  return entry ? entry_enabled_p(entry->self) : Qfalse;
}

void tp_init_fire(VALUE module) {
  VALUE probe = rb_const_get(module, rb_intern("Probe"));
  VALUE span = rb_const_get(module, rb_intern("Span"));

  sym_event = ID2SYM(rb_intern("event"));
  rb_define_method(probe, "fire", probe_fire, -1);
  rb_define_method(probe, "enabled?", entry_enabled_p, 0);
  rb_define_method(span, "enabled?", entry_enabled_p, 0);
  rb_define_singleton_method(module, "fire", module_fire, -1);
  rb_define_singleton_method(module, "enabled?", module_enabled_p, 1);
}
