/*
 * The agent's hook on Ruby's method events, and the shared memory it writes.
 *
 * One object serves every Ruby from 2.7 on: it does not include ruby.h, and declares
 * the few functions that have not changed since 2.7 itself. It is linked with nothing,
 * so it loads wherever Ruby runs: libruby and the C library are already in the process.
 * docs/agent/memory.md documents the layout of the shared memory.
 *
 * A process that maps this memory may write anything to it. Decisions therefore depend
 * on private memory only (hook/state.h). The hook reads back only tails and block
 * numbers from the shared memory, and checks them.
 *
 * The GVL serializes all of this: hooks belong to one Ractor, ours to the main one.
 *
 * One translation unit, hook/calls.c, handles the events, so that it needs no calls to
 * other units. The other units run rarely.
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
 * A development version of Ruby calls this function of each extension, and rejects the
 * extension if the number differs from its own (dln.c). The hook does not depend on that
 * number: it compares what it reads with the results of Ruby's functions. It therefore
 * returns the number of the running program. Released versions do not call this function.
 *
 * Inside this object, the public name may resolve to the program's function.
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
