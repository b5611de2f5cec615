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
 * Hooks belong to one Ractor. What the main one's does the GVL orders; hook/ractors.h
 * puts ours into the others, and hook/lock.h orders those.
 *
 * One translation unit, so that an event is handled without a call; its parts are
 * in the order in which they use one another.
 *
 * SPDX-License-Identifier: MIT
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hook/cruby.h"
#include "hook/shared.h"
#include "hook/state.h"
#include "hook/lock.h"
#include "hook/clock.h"
#include "hook/sites.h"
#include "hook/rings.h"
#include "hook/streams.h"
#include "hook/methods.h"
#include "hook/tables.h"
#include "hook/expressions.h"
#include "hook/calls.h"
#include "hook/objects.h"
#include "hook/ractors.h"
#include "hook/arming.h"
#include "hook/answers.h"

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
  alive = wiped_by_fork();
  state.data_fd = state.control_fd = -1;
  attached_name = rb_intern("__attached__");
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
  rb_define_singleton_method(native, "arm", native_arm, 1);
  rb_define_singleton_method(native, "stop", native_stop, 0);
  rb_define_singleton_method(native, "inner", native_inner, 1);
  rb_define_singleton_method(native, "births", native_births, 1);
  rb_define_singleton_method(native, "no_births", native_no_births, 0);
  rb_define_singleton_method(native, "census", native_census, 0);
  rb_define_singleton_method(native, "join", native_join, 2);
  rb_define_singleton_method(native, "joined", native_joined, 0);
  rb_define_singleton_method(native, "beats", native_beats, 0);
  rb_define_singleton_method(native, "renew", native_renew, 1);
  rb_define_singleton_method(native, "release", native_release, 0);
  rb_define_singleton_method(native, "forget", native_forget, 0);
  rb_define_singleton_method(native, "clock", native_clock, 1);
  rb_define_singleton_method(native, "counters", native_counters, 0);
  rb_define_singleton_method(native, "method_at", native_method_at, 1);
  rb_define_singleton_method(native, "attached", native_attached, 1);
  rb_define_singleton_method(native, "refinement", native_refinement, 1);
  rb_define_singleton_method(native, "id_of", native_id_of, 1);
  rb_define_singleton_method(native, "own", native_own, 1);
  rb_define_singleton_method(native, "watch", native_watch, 0);
  rb_define_singleton_method(native, "use", native_use, 4);
}
