/* Measuring a span. */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <time.h>

static VALUE sym_span;

enum { RETURNED = 0, RAISED = 1, THROWN = 2 };

typedef struct measurement {
  tp_entry *span;
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

/* Fires one of the two, whose own operands are there already. */
static void fire(const measurement *m, const sdt_probe *probe,
                 uint64_t *operands, int lead, bool strict) {
  VALUE values[SDT_MAX_OPERANDS];
  const VALUE *argv = m->argv;

  if (m->span->undeclared && (strict || sdt_traced(probe))) {
    for (int i = 0; i < m->span->count; i++)
      values[i] = argv[i];
    tp_stringify(m->span, values);
    argv = values;
  }
  tp_fire(m->span, probe, argv, operands, lead, strict);
}

TP_COLD static void begin(measurement *m) {
  uint64_t operands[SDT_MAX_OPERANDS];

  rb_need_block();
  fire(m, m->span->probe, operands, 0, tp_strict);
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
  fire(m, m->span->end, operands, 2, false);
}

static VALUE ended(VALUE data) {
  const measurement *m = (const measurement *)data;

  if (TP_UNLIKELY(sdt_watched(m->span->end)))
    finish(m);
  return Qnil;
}

static inline VALUE measure(tp_entry *span, const VALUE *argv) {
  measurement m = {.span = span, .argv = argv, .started = -1};

  if (TP_UNLIKELY(sdt_watched(span->probe) || sdt_watched(span->end)))
    begin(&m);
  /* A tracer may come while the block runs, so it always ends here. */
  return rb_ensure(run, (VALUE)&m, ended, (VALUE)&m);
}

static VALUE measure_undeclared(tp_entry *span, int argc, const VALUE *argv) {
  VALUE values[SDT_MAX_OPERANDS];

  rb_need_block();
  if (!tp_arrange(span, argc, argv, values)) {
    tp_drop(span, argc);
    return rb_yield_values(0);
  }
  tp_learn(span, values);
  return measure(span, values);
}

static VALUE yield_unmeasured(const tp_entry *event) {
  if (!event->undeclared || tp_strict)
    rb_raise(rb_eArgError, "%" PRIsVALUE " is not a span", event->self);
  tp_count(TP_DROPPED);
  return rb_yield_values(0);
}

/* Everything but a span that was defined, with the right number. */
TP_COLD static VALUE measure_slowly(tp_entry *span, int argc,
                                    const VALUE *argv) {
  if (!span->end)
    return yield_unmeasured(span);
  if (span->undeclared)
    return measure_undeclared(span, argc, argv);
  if (argc != span->count)
    tp_raise_arity(span, argc);
  return measure(span, argv);
}

static VALUE span_measure(int argc, VALUE *argv, VALUE self) {
  tp_entry *span = tp_entry_of(self);

  if (TP_UNLIKELY(argc != span->span_arity))
    return measure_slowly(span, argc, argv);
  return measure(span, argv);
}

TP_COLD static VALUE measure_by_name(int argc, VALUE *argv, VALUE self) {
  tp_entry *span;

  if (argc == 0)
    rb_raise(rb_eArgError,
             "wrong number of arguments (given 0, expected 1+)");
  rb_need_block();
  span = tp_find(argv[0]);
  if (!span)
    span = tp_declare(self, sym_span, argc, argv);
  return span ? measure_slowly(span, argc - 1, argv + 1) : rb_yield_values(0);
}

static VALUE module_span(int argc, VALUE *argv, VALUE self) {
  tp_entry *span = argc > 0 ? tp_find_symbol(argv[0]) : NULL;

  if (TP_UNLIKELY(!span || argc - 1 != span->span_arity))
    return measure_by_name(argc, argv, self);
  return measure(span, argv + 1);
}

void tp_init_span(VALUE module) {
  VALUE span = rb_const_get(module, rb_intern("Span"));

  sym_span = ID2SYM(rb_intern("span"));
  rb_define_method(span, "measure", span_measure, -1);
  rb_define_singleton_method(module, "span", module_span, -1);
}
