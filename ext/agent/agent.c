/*
 * The agent's hook on Ruby's method events, and the memory it writes to.
 *
 * One object for every Ruby from 2.7 on: ruby.h is not included, the few
 * functions that have not changed since are declared here. Nor is anything
 * linked, so that it loads wherever Ruby runs; libruby and the C library are in
 * the process already. What is in the shared memory stands in docs/agent/memory.md,
 * byte by byte.
 *
 * Whoever maps that memory may lie. So all that a decision here depends on is
 * private (hook/state.h); of the shared memory only tails and numbers of blocks
 * are read back, and checked.
 *
 * The GVL orders all of this: hooks belong to one Ractor, ours to the main one.
 *
 * An event is handled in one translation unit, hook/calls.c, so that it is handled
 * without a call. All others are called seldom.
 *
 * SPDX-License-Identifier: MIT
 */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include <dlfcn.h>
#include <sys/mman.h>

#include "hook/hook.h"
#include "hook/memory.h"

struct state state;
struct alive *alive;
int is_forked;
VALUE own_threads[MAX_OWN_THREADS];
VALUE marker;
ID attached_name, new_name;
VALUE nil_value;
uint64_t arming;

static const struct data_type marker_type = {.name = "tracepoint/agent", .mark = mark_classes};

#define VISIBLE __attribute__((visibility("default")))

#define ARGUMENTS_0
#define ARGUMENTS_1 , a
#define ARGUMENTS_2 ARGUMENTS_1, b
#define ARGUMENTS_4 ARGUMENTS_2, c, d

#define GUARDED(name, arity)                                                   \
  static VALUE guarded_##name(VALUE self PARAMETERS_##arity) {                 \
    check_fork();                                                              \
    return native_##name(self ARGUMENTS_##arity);                              \
  }
#define DEFINED(name, arity) rb_define_singleton_method(native, #name, guarded_##name, arity);

ENTRIES(GUARDED)

static void *wiped_by_fork(void) {
  void *page = map_private(4096);
  if (page && madvise(page, 4096, MADV_WIPEONFORK)) { /* Linux before 4.14 */
    munmap(page, 4096);
    return NULL;
  }
  return page;
}

/*
 * A development version of Ruby calls this function of each extension, and refuses one
 * with another number than its own (dln.c). The hook does not depend on that number: it
 * compares what it reads with what Ruby's functions return. It therefore returns the number
 * with which the program itself was compiled. Released versions do not call this function.
 *
 * Within this object its public name may stand for the program's function.
 */
static unsigned long long abi_version(void) {
  unsigned long long (*programs)(void) = dlsym(RTLD_DEFAULT, "ruby_abi_version");
  return programs && programs != abi_version ? programs() : 0;
}

VISIBLE unsigned long long ruby_abi_version(void) __attribute__((alias("abi_version")));

VISIBLE void Init_agent_hook(void) {
  VALUE outer = rb_define_module_under(rb_define_module("Tracepoint"), "Agent");
  VALUE native = rb_define_module_under(outer, "Native");
  if ((alive = wiped_by_fork()))
    alive->is_known = 1;
  know_main_ractor();
  state.data_fd = state.control_fd = -1;
  attached_name = rb_intern("__attached__");
  new_name = rb_intern("new");
  nil_value = rb_ary_pop(rb_ary_new());
  know_expressions();
  marker = rb_data_typed_object_wrap(rb_cObject, &marker, &marker_type);
  rb_gc_register_address(&marker);
  ENTRIES(DEFINED)
}
