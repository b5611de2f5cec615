/* Measuring a span. */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <time.h>

static VALUE sym_span, sym_returned, sym_raised, sym_thrown;
static VALUE cMeasurement;

enum { RETURNED = 0, RAISED = 1, THROWN = 2 };

typedef struct measurement {
  tp_entry *span;
  const VALUE *argv;
  const VALUE *results; /* NULL if none can be set */
  int64_t started;      /* -1 if it was untraced at the start */
  VALUE self;           /* for blocks of spans with results, else Qfalse */
  bool returned;
  bool ended;
} measurement;

/* The data of a Tracepoint::Measurement. */
typedef struct lasting {
  measurement m;
  VALUE values[SDT_MAX_OPERANDS]; /* the arguments, then the results */
} lasting;

static int64_t now(void) {
  struct timespec time;

  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

TP_COLD static void begin(measurement *m, const VALUE *argv) {
  const tp_entry *span = m->span;
  uint64_t operands[SDT_MAX_OPERANDS];
  VALUE values[SDT_MAX_OPERANDS];

  MEMCPY(values, argv, VALUE, span->count);
  if (span->undeclared && (tp_strict || tp_traced(span->probe)))
    tp_stringify(span, values);
  tp_fire(span, span->probe, values, span->count, operands, 0, tp_strict);
  if (tp_traced(span->probe) || tp_traced(span->end))
    m->started = now();
}

/* May run during an exception: must not raise, not even in strict mode. */
TP_COLD static void end(const measurement *m, int outcome) {
  const tp_entry *span = m->span;
  int64_t duration = m->started < 0 ? -1 : now() - m->started;
  int count = span->count + span->results;
  uint64_t operands[SDT_MAX_OPERANDS];
  VALUE values[SDT_MAX_OPERANDS];

  operands[0] = (uint64_t)duration;
  operands[1] = (uint64_t)outcome;
  MEMCPY(values, m->argv, VALUE, span->count);
  for (int i = span->count; i < count; i++)
    values[i] = m->results ? m->results[i - span->count] : Qnil;
  if (span->undeclared && tp_traced(span->end))
    tp_stringify(span, values);
  tp_fire(span, span->end, values, count, operands, 2, false);
}

static inline bool is_watched(const tp_entry *span) {
  return sdt_watched(span->probe) || sdt_watched(span->end);
}

/* ------------------------------------------------------ Tracepoint::Measurement */

/*
 * Return a shareable copy: a measurement may be sent to another Ractor. Strings
 * are copied in their current state. The class Object replaces other objects,
 * because, like them, it fits no type.
 */
static VALUE lasting_value(VALUE value) {
  if (RB_SPECIAL_CONST_P(value))
    return value;
  switch (rb_type(value)) {
  case T_STRING:
    return rb_obj_freeze(rb_str_dup(value));
  case T_BIGNUM:
  case T_FLOAT:
  case T_SYMBOL:
    return value;
  default:
    return rb_cObject;
  }
}

static void measurement_mark(void *data) {
  const lasting *lasting = data;

  for (int i = 0; i < SDT_MAX_OPERANDS; i++)
    rb_gc_mark(lasting->values[i]);
}

static const rb_data_type_t measurement_type = {
    .wrap_struct_name = "tracepoint/measurement",
    .function = {.dmark = measurement_mark, .dfree = RUBY_DEFAULT_FREE},
    .flags = TP_TYPED_FLAGS,
};

static measurement *measurement_new(tp_entry *span, const VALUE *argv) {
  lasting *lasting;
  VALUE self = TypedData_Make_Struct(cMeasurement, struct lasting,
                                     &measurement_type, lasting);
  measurement *m = &lasting->m;

  m->span = span;
  m->argv = lasting->values;
  m->results = lasting->values + span->count;
  m->started = -1;
  m->self = self;
  for (int i = 0; i < SDT_MAX_OPERANDS; i++)
    RB_OBJ_WRITE(self, &lasting->values[i],
                 argv && i < span->count ? lasting_value(argv[i]) : Qnil);
  rb_obj_freeze(self); /* shareable between Ractors: see lasting_value */
  return m;
}

VALUE tp_untraced_measurement(tp_entry *span) {
  return measurement_new(span, NULL)->self;
}

static int result_index(const tp_entry *span, VALUE name) {
  for (int i = span->count; i < span->count + span->results; i++) {
    if (RARRAY_AREF(span->labels, i) == name)
      return i;
  }
  rb_raise(rb_eArgError, "%" PRIsVALUE " has no result %+" PRIsVALUE,
           span->self, name);
}

static VALUE measurement_set(VALUE self, VALUE name, VALUE value) {
  lasting *lasting = RTYPEDDATA_DATA(self);
  const tp_entry *span = lasting->m.span;
  int index = result_index(span, name);

  if (self == span->untraced ||
      __atomic_load_n(&lasting->m.ended, __ATOMIC_RELAXED))
    return value;
  if (tp_strict)
    tp_check_fit(span, index, value);
  RB_OBJ_WRITE(self, &lasting->values[index], lasting_value(value));
  return value;
}

static int outcome_of(VALUE name) {
  if (name == sym_returned)
    return RETURNED;
  if (name == sym_raised)
    return RAISED;
  if (name == sym_thrown)
    return THROWN;
  rb_raise(rb_eArgError,
           "an outcome is :returned, :raised or :thrown, not %+" PRIsVALUE,
           name);
}

static void finish(measurement *m, int outcome) {
  if (m->self != m->span->untraced &&
      __atomic_exchange_n(&m->ended, true, __ATOMIC_ACQ_REL))
    return;
  if (TP_UNLIKELY(sdt_watched(m->span->end)))
    end(m, outcome);
}

static VALUE measurement_finish(int argc, VALUE *argv, VALUE self) {
  measurement *m = &((lasting *)RTYPEDDATA_DATA(self))->m;

  rb_check_arity(argc, 0, 1);
  finish(m, argc ? outcome_of(argv[0]) : RETURNED);
  return Qnil;
}

static VALUE span_start(int argc, VALUE *argv, VALUE self) {
  tp_entry *span = tp_entry_of(self);
  measurement *m;
  VALUE ret;

  if (span->undeclared)
    rb_raise(rb_eArgError,
             "%" PRIsVALUE " is not defined (Tracepoint.define_span): it can "
             "only be measured",
             self);
  if (argc != span->count)
    tp_raise_arity(span, argc);
  if (TP_LIKELY(!is_watched(span)))
    return span->untraced;
  m = measurement_new(span, argv);
  ret = m->self;
  begin(m, argv);
  RB_GC_GUARD(ret);
  return ret;
}

/* ------------------------------------------------------------------- the block */

static inline VALUE yield(const tp_entry *span, VALUE self) {
  return span->results ? rb_yield_values(1, self) : rb_yield_values(0);
}

static VALUE run(VALUE data) {
  measurement *m = (measurement *)data;
  VALUE value = yield(m->span, m->self);

  m->returned = true;
  return value;
}

static VALUE ended(VALUE data) {
  measurement *m = (measurement *)data;

  /* In rb_ensure, rb_errinfo is the exception, or nil instead of the internal
   * data of a throw or break. */
  if (TP_UNLIKELY(sdt_watched(m->span->end)))
    finish(m, m->returned            ? RETURNED
              : NIL_P(rb_errinfo()) ? THROWN
                                    : RAISED);
  return Qnil;
}

/* The span ends regardless of how the block ends. */
static VALUE measure_watched(tp_entry *span, const VALUE *argv) {
  measurement here = {.span = span, .argv = argv, .started = -1};
  measurement *m = &here;
  VALUE self, value;

  rb_need_block();
  if (span->results)
    m = measurement_new(span, argv);
  self = m->self;
  begin(m, argv);
  value = rb_ensure(run, (VALUE)m, ended, (VALUE)m);
  RB_GC_GUARD(self);
  return value;
}

/*
 * Avoid rb_ensure, which costs as much as everything else together. A tracer
 * that attaches while the block runs sees that it returned, but does not see
 * blocks that are left in another way.
 */
static inline VALUE measure(tp_entry *span, const VALUE *argv) {
  VALUE value;

  if (TP_UNLIKELY(is_watched(span)))
    return measure_watched(span, argv);
  value = yield(span, span->untraced);
  if (TP_UNLIKELY(sdt_watched(span->end))) {
    measurement m = {.span = span, .argv = argv, .started = -1};

    end(&m, RETURNED);
  }
  return value;
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

/* Handles every measurement except defined spans with the right number. */
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
  sym_returned = ID2SYM(rb_intern("returned"));
  sym_raised = ID2SYM(rb_intern("raised"));
  sym_thrown = ID2SYM(rb_intern("thrown"));
  cMeasurement = tp_define_class(module, "Measurement");
  rb_define_method(cMeasurement, "[]=", measurement_set, 2);
  rb_define_method(cMeasurement, "finish", measurement_finish, -1);
  rb_define_method(span, "start", span_start, -1);
  rb_define_method(span, "measure", span_measure, -1);
  rb_define_singleton_method(module, "span", module_span, -1);
}
