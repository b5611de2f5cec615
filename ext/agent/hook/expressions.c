/* Values of expressions at a call, evaluated in the program's thread. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "rings.h"

/* Contents of TEXT records: docs/agent/memory.md, "Values of expressions". */
enum { VALUES_HEAD = 3 };

enum { VALUES_FOLLOW, VALUES_LATE, VALUES_TOO_MANY, VALUES_NO_STACK, VALUES_NO_MEMORY };

/*
 * A running evaluation. It may outlive its arming, and its fiber may never resume, so it is
 * not on that fiber's stack. It exists only while its thread runs that fiber. The GVL
 * protects it.
 */
struct evaluation {
  uint64_t serial; /* 0: free */
  VALUE thread;
  const char *ec;
  uint64_t deadline_ns, limit_ns;
  uint64_t cpu_ns; /* its thread's CPU time at its start or at the last stop request */
  uint32_t tid;
  uint32_t program;
  uint64_t arming;
  uint32_t stops; /* number of stop requests */
  uint8_t telling;
  uint8_t over; /* send no more stop requests */
};

enum { MAX_EVALUATIONS = 256, MAX_STOPS = 100 };
static struct evaluation evaluations[MAX_EVALUATIONS];
static int evaluations_used; /* slots from here on have never been used */
static uint64_t serials;
static VALUE expressions; /* the module that evaluates */
static VALUE stop_class, raise_method, asleep_method;
static ID of_name, flush_name, bind_call_name;
static int is_hooked; /* on switches between fibers */

void know_expressions(void) {
  VALUE *kept[] = {&expressions, &stop_class, &raise_method, &asleep_method};
  of_name = rb_intern("of");
  flush_name = rb_intern("flush");
  bind_call_name = rb_intern("bind_call");
  for (int i = 0; i < 4; i++) {
    *kept[i] = nil_value;
    rb_gc_register_address(kept[i]);
  }
}

void mark_evaluations(void) {
  for (int i = 0; i < MAX_EVALUATIONS; i++)
    if (evaluations[i].serial)
      rb_gc_mark(evaluations[i].thread);
}

/* Data shared by evaluate() and its parts. */
struct evaluating {
  const struct trace_arg *arg;
  struct values *values;
  struct evaluation *evaluation;
  uint64_t serial;
  uint32_t program;
  int is_c;
};

static VALUE evaluate_body(VALUE data) {
  const struct evaluating *e = (const struct evaluating *)data;
  struct trace_arg *arg = (struct trace_arg *)e->arg;
  unsigned wants = state.programs[e->program].wants;
  VALUE arguments[] = {rb_ull2inum(e->program - 1), nil_value, arg->self, nil_value, nil_value};
  /* A method written in C has no frame yet: the binding would be its caller's. */
  if ((wants & WANTS_BINDING) && !e->is_c)
    arguments[1] = rb_tracearg_binding(arg);
  if (wants & WANTS_PLACE) {
    arguments[3] = rb_tracearg_path(arg);
    arguments[4] = rb_tracearg_lineno(arg);
  }
  VALUE found = rb_funcallv(expressions, of_name, 5, arguments);
  if (!is_object(found) || type_of(found) != TYPE_STRING)
    return nil_value;
  size_t size = rb_num2ull(rb_str_length(found)); /* the string is binary */
  const char *bytes = rb_string_value_ptr(&found);
  if (size > MAX_VALUES)
    return nil_value;
  for (size_t i = 0; i < size; i++)
    e->values->bytes[i] = (uint8_t)bytes[i];
  e->values->size = (uint32_t)size;
  return nil_value;
}

static VALUE flush_body(VALUE unused) {
  (void)unused;
  return rb_funcallv(expressions, flush_name, 0, NULL);
}

static VALUE schedule_body(VALUE unused) {
  (void)unused;
  rb_thread_schedule();
  return unused;
}

/* throw and break leave an imemo as Ruby's error, not an exception. */
static int is_exception(VALUE error) {
  return is_object(error) && type_of(error) != TYPE_IMEMO;
}

static int is_stop(VALUE error) {
  return is_exception(error) && rb_obj_is_kind_of(error, stop_class) != FALSE_VALUE;
}

/*
 * Return the resource that the agent's own methods lacked, or 0. Methods of the program
 * that an expression calls report theirs as the value.
 */
static uint8_t lacking(VALUE error) {
  if (!is_exception(error))
    return 0;
  if (rb_obj_is_kind_of(error, rb_eSysStackError) != FALSE_VALUE)
    return VALUES_NO_STACK;
  return rb_obj_is_kind_of(error, rb_eNoMemError) != FALSE_VALUE ? VALUES_NO_MEMORY : 0;
}

/* Return whether its thread is receiving a stop request now. */
static int is_telling(const struct evaluation *evaluation, uint64_t serial) {
  return evaluation->serial == serial && evaluation->telling;
}

/*
 * Raise our pending exceptions for this thread here, where they have no effect. Anything
 * else that arrives belongs to the program: return its state for rb_jump_tag, or 0.
 */
static int flush_stops(const struct evaluation *evaluation, uint64_t serial) {
  int left = 0;
  VALUE error = nil_value;
  for (int i = 0; i < MAX_STOPS || is_telling(evaluation, serial); i++) {
    int how = 0;
    int waits = is_telling(evaluation, serial);
    rb_protect(waits ? schedule_body : flush_body, nil_value, &how);
    if (!how && !waits)
      break;
    if (!how || is_stop(rb_errinfo()) || lacking(rb_errinfo()))
      continue;
    left = how;
    error = rb_errinfo();
    if (!is_exception(error))
      return left; /* a kill or a throw: do not change it */
  }
  rb_set_errinfo(error);
  return left;
}

static void count_late(const struct evaluation *evaluation, int has_returned) {
  struct program *program = &state.programs[evaluation->program];
  if (evaluation->arming != arming || !alive->armed)
    return;
  if (evaluation->stops && program->late < MAX_LATE)
    program->late++;
  else if (!evaluation->stops && has_returned)
    program->late = 0;
}

/* End an evaluation that its thread has left; return a pending jump's state, or 0. */
static int end_evaluation(struct evaluation *evaluation, int has_returned) {
  uint64_t serial = evaluation->serial;
  evaluation->over = 1;
  int left = evaluation->stops ? flush_stops(evaluation, serial) : 0;
  if (evaluation->serial == serial) {
    count_late(evaluation, has_returned);
    evaluation->serial = 0;
  }
  return left;
}

/*
 * The exception that ends an evaluation is for its fiber. When the thread switches to another
 * fiber, pending exceptions are taken back and no more are sent. If the first fiber resumes,
 * its evaluation has no limit any more.
 */
static int leave_other_fibers(const char *ec) {
  VALUE thread = rb_thread_current();
  int left = 0;
  for (int i = 0; i < evaluations_used && !left; i++) {
    struct evaluation *evaluation = &evaluations[i];
    if (evaluation->serial && evaluation->thread == thread && evaluation->ec != ec)
      left = end_evaluation(evaluation, 0);
  }
  return left;
}

static VALUE evaluate_end(VALUE data) {
  const struct evaluating *e = (const struct evaluating *)data;
  int left = 0;
  /* The serial differs if this fiber was left, and in a child after a fork. */
  if (e->evaluation->serial == e->serial)
    left = end_evaluation(e->evaluation, 1);
  if (!left) /* Ruby reports no switch to fibers that return into a hook */
    left = leave_other_fibers(e->arg->ec);
  if (left)
    rb_jump_tag(left);
  return nil_value;
}

static VALUE evaluate_and_end(VALUE data) {
  return rb_ensure(evaluate_body, data, evaluate_end, data);
}

static struct evaluation *new_evaluation(const struct trace_arg *arg, uint32_t program) {
  for (int i = 0; i < MAX_EVALUATIONS; i++) {
    if (evaluations[i].serial)
      continue;
    if (i == evaluations_used)
      evaluations_used++;
    uint64_t limit = state.config.limit_ns;
    evaluations[i] = (struct evaluation){.serial = ++serials,
                                         .thread = rb_thread_current(),
                                         .ec = arg->ec,
                                         .deadline_ns = monotonic_ns() + limit,
                                         .limit_ns = limit,
                                         .cpu_ns = thread_cpu_ns(),
                                         .tid = (uint32_t)syscall(SYS_gettid),
                                         .program = program,
                                         .arming = arming};
    return &evaluations[i];
  }
  return NULL;
}

static void values_are(struct values *values, uint32_t program, uint8_t what) {
  values->bytes[0] = (uint8_t)(program - 1);
  values->bytes[1] = (uint8_t)((program - 1) >> 8);
  values->bytes[2] = what;
  values->size = VALUES_HEAD;
}

/*
 * Evaluate a program's expressions: store their values, or why they are missing. Nothing
 * escapes from the expressions except what other threads and signals send to this thread.
 * Return its state for rb_jump_tag, or 0.
 */
int evaluate(const struct trace_arg *arg, uint32_t program, int is_c,
                          struct values *values) {
  values->size = 0;
  if (state.programs[program].late >= MAX_LATE) {
    values_are(values, program, VALUES_LATE);
    return 0;
  }
  struct evaluation *evaluation = new_evaluation(arg, program);
  if (!evaluation) {
    values_are(values, program, VALUES_TOO_MANY);
    return 0;
  }
  struct evaluating e = {arg, values, evaluation, evaluation->serial, program, is_c};
  int left = 0;
  rb_protect(evaluate_and_end, (VALUE)&e, &left);
  uint8_t lacked = left ? lacking(rb_errinfo()) : 0;
  if (lacked)
    values_are(values, program, lacked);
  if (lacked || (left && is_stop(rb_errinfo()))) {
    rb_set_errinfo(nil_value);
    left = 0;
  }
  return left;
}

static void hook_fiber(VALUE data, const struct trace_arg *arg) {
  (void)data;
  int left = leave_other_fibers(arg->ec);
  if (left)
    rb_jump_tag(left);
}

void hook_fibers(void) {
  if (is_hooked)
    return;
  rb_add_event_hook2(hook_fiber, EVENT_FIBER_SWITCH, marker, HOOK_SAFE | HOOK_RAW_ARG);
  is_hooked = 1;
}

static void unhook_fibers(void) {
  if (is_hooked)
    rb_remove_event_hook_with_data(hook_fiber, marker);
  is_hooked = 0;
}

/* In a child after a fork, none of the evaluations exists. */
void forget_evaluations(void) {
  unhook_fibers();
  for (int i = 0; i < MAX_EVALUATIONS; i++)
    evaluations[i] = (struct evaluation){.serial = 0};
}

static VALUE raise_body(VALUE thread) {
  VALUE arguments[] = {thread, stop_class};
  return rb_funcallv(raise_method, bind_call_name, 2, arguments);
}

static VALUE asleep_body(VALUE thread) {
  return rb_funcallv(asleep_method, bind_call_name, 1, &thread);
}

/* Return the CPU time of a thread of this process, or the maximum if it has ended. */
static uint64_t cpu_of_thread(uint32_t tid) {
  struct timespec now;
  clockid_t clock = (clockid_t)(~tid << 3 | 6); /* as in pthread_getcpuclockid */
  if (clock_gettime(clock, &now))
    return UINT64_MAX;
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/*
 * Return whether the evaluation has run or slept for longer than its limit. Waiting for a
 * processor or for the GVL does not count.
 */
static int is_late(const struct evaluation *evaluation, uint64_t now, int *left) {
  if (now < evaluation->deadline_ns)
    return 0;
  uint64_t cpu = cpu_of_thread(evaluation->tid);
  if (cpu >= evaluation->cpu_ns + evaluation->limit_ns)
    return 1;
  uint64_t serial = evaluation->serial;
  VALUE asleep = rb_protect(asleep_body, evaluation->thread, left);
  return !*left && evaluation->serial == serial && asleep != FALSE_VALUE;
}

/* Return whether evaluations are running or may start. */
static int is_watching(void) {
  if (alive->armed && state.evaluating)
    return 1;
  for (int i = 0; i < evaluations_used; i++)
    if (evaluations[i].serial)
      return 1;
  return 0;
}

/*
 * watch: end evaluations that exceed their limit or belong to an earlier arming. Return true
 * if it has to be called again.
 */
VALUE native_watch(VALUE self) {
  (void)self;
  uint64_t now = monotonic_ns();
  int left = 0;
  for (int i = 0; i < evaluations_used && !left; i++) {
    struct evaluation *evaluation = &evaluations[i];
    if (!evaluation->serial || evaluation->over || evaluation->telling)
      continue;
    int is_over = evaluation->arming != arming || !alive->armed;
    if (!(is_over && !evaluation->stops) && !is_late(evaluation, now, &left))
      continue;
    /* Update before raising: the evaluation may be over when this returns. */
    evaluation->stops++;
    evaluation->deadline_ns = now + evaluation->limit_ns;
    evaluation->cpu_ns = cpu_of_thread(evaluation->tid);
    evaluation->telling = 1;
    rb_protect(raise_body, evaluation->thread, &left);
    evaluation->telling = 0;
  }
  if (left)
    rb_jump_tag(left);
  if (is_watching())
    return rb_ull2inum(1);
  unhook_fibers();
  return FALSE_VALUE;
}

/* Append an ENTRY and its values: all of the values, or none. */
int put_with_values(struct stream *s, uint64_t time, uint32_t method,
                    uint32_t depth, uint8_t kind, const struct values *values) {
  uint32_t size = values->size;
  uint32_t records = (size + TEXT_BYTES - 1) / TEXT_BYTES;
  if (!records || !has_free_room(s, 1 + records + records_behind(s))) {
    if (records)
      ADD(state.header->no_values, 1);
    return put(s, time, method, depth, kind, 0);
  }
  put(s, time, method, depth, kind, RECORD_VALUES);
  for (uint32_t at = 0; at < size; at += TEXT_BYTES) {
    uint32_t length = size - at < TEXT_BYTES ? size - at : TEXT_BYTES;
    struct record record = {.kind = RECORD_TEXT};
    record.flags = (uint8_t)(length | (at + length < size ? TEXT_GOES_ON : 0));
    __builtin_memcpy(&record, values->bytes + at, length);
    s->ring[s->written++ & state.ring_mask] = record;
  }
  return 1;
}

/* use(module, exception, Thread#raise, Thread#stop?): set what evaluates and what ends it. */
VALUE native_use(VALUE self, VALUE module, VALUE exception, VALUE raising,
                        VALUE asleep) {
  (void)self;
  expressions = module;
  stop_class = exception;
  raise_method = raising;
  asleep_method = asleep;
  return module;
}
