/*
 * The agent's hook on Ruby's method events, and the memory it writes to.
 *
 * One object for every Ruby from 2.7 on: ruby.h is not included, the few
 * functions that have not changed since are declared here. Nor is anything
 * linked, so that it loads wherever Ruby runs; libruby and the C library are in
 * the process already. What is in the shared memory stands in docs/agent.md,
 * byte by byte.
 *
 * Whoever maps that memory may lie. So all that a decision here depends on is
 * private (hook/state.h); of the shared memory only tails and numbers of blocks
 * are read back, and checked.
 *
 * The GVL orders all of this: hooks belong to one Ractor, ours to the main one.
 *
 * One translation unit, so that an event is handled without a call; its parts are
 * in the order in which they use one another.
 *
 * SPDX-License-Identifier: MIT
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "hook/cruby.h"
#include "hook/shared.h"
#include "hook/state.h"
#include "hook/clock.h"
#include "hook/sites.h"
#include "hook/rings.h"
#include "hook/streams.h"
#include "hook/methods.h"
#include "hook/tables.h"
#include "hook/expressions.h"
#include "hook/calls.h"
#include "hook/objects.h"
#include "hook/arming.h"
#include "hook/answers.h"

/* The methods of Tracepoint::Agent::Native, by name and number of arguments. */
#define ENTRIES(ENTRY) \
  ENTRY(arm, 1) \
  ENTRY(stop, 0) \
  ENTRY(inner, 1) \
  ENTRY(others, 0) \
  ENTRY(beats, 0) \
  ENTRY(renew, 1) \
  ENTRY(release, 0) \
  ENTRY(forget, 0) \
  ENTRY(best_clock, 0) \
  ENTRY(clock, 1) \
  ENTRY(counters, 0) \
  ENTRY(method_at, 1) \
  ENTRY(attached, 1) \
  ENTRY(refinement, 1) \
  ENTRY(id_of, 1) \
  ENTRY(own, 1) \
  ENTRY(watch, 0) \
  ENTRY(use, 4) \
  ENTRY(forked, 0)

#define PARAMETERS_0
#define PARAMETERS_1 , VALUE a
#define PARAMETERS_2 PARAMETERS_1, VALUE b
#define PARAMETERS_4 PARAMETERS_2, VALUE c, VALUE d
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

__attribute__((visibility("default"))) void Init_agent_hook(void) {
  VALUE outer = rb_define_module_under(rb_define_module("Tracepoint"), "Agent");
  VALUE native = rb_define_module_under(outer, "Native");
  if ((alive = wiped_by_fork()))
    alive->is_known = 1;
  know_main_ractor();
  state.data_fd = state.control_fd = -1;
  attached_name = rb_intern("__attached__");
  new_name = rb_intern("new");
  of_name = rb_intern("of");
  flush_name = rb_intern("flush");
  bind_call_name = rb_intern("bind_call");
  nil_value = rb_ary_pop(rb_ary_new());
  VALUE *kept[] = {&expressions, &stop_class, &raise_method, &asleep_method};
  for (int i = 0; i < 4; i++) {
    *kept[i] = nil_value;
    rb_gc_register_address(kept[i]);
  }
  marker = rb_data_object_wrap(rb_cObject, &marker, mark_classes, NULL);
  rb_gc_register_address(&marker);
  ENTRIES(DEFINED)
}
