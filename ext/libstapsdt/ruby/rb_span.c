/* Measuring a span. */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <time.h>

static ID id_declare;
static VALUE sym_span;

enum { RETURNED = 0, RAISED = 1, THROWN = 2 };

typedef struct measurement {
  const tp_entry *span;
  const VALUE *argv;
  int64_t started; /* -1: nobody traced it then */
  bool returned;
} measurement;

static int64_t now(void) {
  struct timespec time;

  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static VALUE run(VALUE data) {
  measurement *m = (measurement *)data;
  VALUE value = rb_yield_values(0);

  m->returned = true;
  return value;
}

TP_COLD static void begin(measurement *m) {
  uint64_t operands[SDT_MAX_OPERANDS];

  rb_need_block();
  tp_fire(m->span, m->span->probe, m->argv, operands, 0, tp_strict);
  if (sdt_traced(m->span->probe) || sdt_traced(m->span->end))
    m->started = now();
}

/* Runs while an exception may be on its way: it must not raise, strict or not. */
TP_COLD static void finish(const measurement *m) {
  int64_t duration = m->started < 0 ? -1 : now() - m->started;
  uint64_t operands[SDT_MAX_OPERANDS];

  operands[0] = (uint64_t)duration;
  /* rb_ensure shows an exception here, and nil in place of a throw's or a
   * break's own data. */
  operands[1] = m->returned ? RETURNED : NIL_P(rb_errinfo()) ? THROWN : RAISED;
  tp_fire(m->span, m->span->end, m->argv, operands, 2, false);
}

static VALUE ended(VALUE data) {
  const measurement *m = (const measurement *)data;

  if (TP_UNLIKELY(sdt_watched(m->span->end)))
    finish(m);
  return Qnil;
}

static inline VALUE measure(const tp_entry *span, const VALUE *argv) {
  measurement m = {.span = span, .argv = argv, .started = -1};

  if (TP_UNLIKELY(sdt_watched(span->probe) || sdt_watched(span->end)))
    begin(&m);
  /* A tracer may come while the block runs, so it always ends here. */
  return rb_ensure(run, (VALUE)&m, ended, (VALUE)&m);
}

static VALUE span_measure(int argc, VALUE *argv, VALUE self) {
  const tp_entry *span = tp_entry_of(self);

  if (TP_UNLIKELY(argc != span->span_arity))
    tp_raise_arity(span, argc);
  return measure(span, argv);
}

TP_COLD static const tp_entry *span_by_name(int argc, VALUE *argv, VALUE self) {
  const tp_entry *span;

  if (argc == 0)
    rb_raise(rb_eArgError,
             "wrong number of arguments (given 0, expected 1+)");
  rb_need_block();
  span = tp_find(argv[0]);
  if (!span)
    span = tp_entry_of(rb_funcall(self, id_declare, 3, sym_span, argv[0],
                                  rb_ary_new_from_values(argc - 1, argv + 1)));
  if (!span->end)
    rb_raise(rb_eArgError, "%" PRIsVALUE " is no span", span->self);
  if (argc - 1 != span->count)
    tp_raise_arity(span, argc - 1);
  return span;
}

static VALUE module_span(int argc, VALUE *argv, VALUE self) {
  const tp_entry *span = argc > 0 ? tp_find_symbol(argv[0]) : NULL;

  if (TP_UNLIKELY(!span || argc - 1 != span->span_arity))
    span = span_by_name(argc, argv, self);
  return measure(span, argv + 1);
}

void tp_init_span(VALUE module) {
  VALUE span = rb_const_get(module, rb_intern("Span"));

  id_declare = rb_intern("declare");
  sym_span = ID2SYM(rb_intern("span"));
  rb_define_method(span, "measure", span_measure, -1);
  rb_define_singleton_method(module, "span", module_span, -1);
}
