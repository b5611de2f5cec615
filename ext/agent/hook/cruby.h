/* The parts of CRuby that the hook uses. They have not changed since 2.7. */
#ifndef TRACEPOINT_HOOK_CRUBY_H
#define TRACEPOINT_HOOK_CRUBY_H

#include <stdint.h>

typedef unsigned long VALUE;
typedef unsigned long ID;

/* rb_trace_arg_t, the same from 2.0 to 4.1. The fields after data are not read. */
struct trace_arg {
  uint32_t event;
  const char *ec;
  const char *cfp;
  VALUE self;
  ID id; /* set for some events; for others, id and klass are 0 */
  ID called_id;
  VALUE klass;
  VALUE data;
};

/*
 * The beginning of rb_data_type_t, the same in all versions. Its end moved in 4.1. Zeros are
 * valid in every version: no parent, no flags.
 */
struct data_type {
  const char *name;
  void (*mark)(void *);
  const void *zeros[30];
};

typedef VALUE (*method_function)();
typedef void (*hook_function)(VALUE data, const struct trace_arg *arg);

extern VALUE rb_cObject;
extern VALUE rb_eSysStackError;
extern VALUE rb_eNoMemError;
extern VALUE rb_define_module(const char *name);
extern VALUE rb_define_module_under(VALUE outer, const char *name);
extern void rb_define_singleton_method(VALUE object, const char *name,
                                       method_function function, int arity);
extern void rb_add_event_hook2(hook_function function, uint32_t events,
                               VALUE data, int flags);
extern int rb_remove_event_hook_with_data(hook_function function, VALUE data);
extern int rb_frame_method_id_and_class(ID *id, VALUE *owner);
extern VALUE rb_data_typed_object_wrap(VALUE klass, void *data, const void *type);
extern void rb_gc_register_address(VALUE *address);
extern void rb_gc_mark(VALUE object);
extern VALUE rb_thread_current(void);
extern VALUE rb_class_real(VALUE klass);
extern VALUE rb_obj_class(VALUE object);
extern VALUE rb_mod_name(VALUE module);
extern VALUE rb_attr_get(VALUE object, ID name);
extern VALUE rb_class_attached_object(VALUE klass) __attribute__((weak)); /* since 3.2 */
extern ID rb_intern(const char *name);
extern ID rb_to_id(VALUE name);
extern VALUE rb_id2sym(ID id);
extern VALUE rb_ary_new(void);
extern VALUE rb_ary_push(VALUE array, VALUE value);
extern VALUE rb_ull2inum(unsigned long long number);
extern unsigned long long rb_num2ull(VALUE number);
extern VALUE rb_str_length(VALUE string);
extern char *rb_string_value_ptr(VALUE *string);
extern VALUE rb_ary_pop(VALUE array);
extern VALUE rb_funcallv(VALUE receiver, ID name, int count, const VALUE *arguments);
extern VALUE rb_obj_is_kind_of(VALUE object, VALUE klass);
extern VALUE rb_tracepoint_new(VALUE thread, uint32_t events,
                               void (*function)(VALUE tracepoint, void *data), void *data);
extern struct trace_arg *rb_tracearg_from_tracepoint(VALUE tracepoint);
extern uint32_t rb_tracearg_event_flag(struct trace_arg *arg);
extern VALUE rb_tracearg_self(struct trace_arg *arg);
extern VALUE rb_tracearg_method_id(struct trace_arg *arg);
extern VALUE rb_tracearg_binding(struct trace_arg *arg);
extern VALUE rb_tracearg_path(struct trace_arg *arg);
extern VALUE rb_tracearg_lineno(struct trace_arg *arg);
extern VALUE rb_protect(VALUE (*body)(VALUE), VALUE data, int *state);
extern VALUE rb_ensure(VALUE (*body)(), VALUE data, VALUE (*end)(), VALUE data_of_end);
extern void rb_jump_tag(int state) __attribute__((noreturn));
extern VALUE rb_errinfo(void);
extern void rb_set_errinfo(VALUE error);
extern void rb_thread_schedule(void);
extern VALUE rb_cRactor __attribute__((weak)); /* since 3.0 */
/* The type is rb_ractor_local_key_t; since 3.0. */
extern void *rb_ractor_local_storage_ptr_newkey(const void *type) __attribute__((weak));
extern void *rb_ractor_local_storage_ptr(void *key) __attribute__((weak));
extern void rb_ractor_local_storage_ptr_set(void *key, void *value) __attribute__((weak));

enum {
  EVENT_CALL = 0x8,
  EVENT_RETURN = 0x10,
  EVENT_C_CALL = 0x20,
  EVENT_C_RETURN = 0x40,
  EVENT_RAISE = 0x80,
  EVENT_THREAD_END = 0x800,
  EVENT_FIBER_SWITCH = 0x1000,
  EVENT_NEWOBJ = 0x100000,
  EVENT_GC_ENTER = 0x2000000,
  EVENT_GC_EXIT = 0x4000000,
  HOOK_SAFE = 1,
  HOOK_RAW_ARG = 4,
  TYPE_MASK = 0x1f,
  TYPE_CLASS = 0x2,
  TYPE_MODULE = 0x3,
  TYPE_STRING = 0x5,
  TYPE_IMEMO = 0x1a,
  TYPE_ICLASS = 0x1c,
};

#define FALSE_VALUE ((VALUE)0) /* in every Ruby; nil varies */

struct basic {
  VALUE flags;
  VALUE klass;
};

/* Immediates are below 64 (nil, true, false, undef) or have one of the lowest 3 bits set. */
static inline int is_object(VALUE value) { return value >= 64 && (value & 7) == 0; }

static inline unsigned type_of(VALUE object) {
  return ((const struct basic *)object)->flags & TYPE_MASK;
}

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define NEVER_INLINE static __attribute__((noinline))

#endif
