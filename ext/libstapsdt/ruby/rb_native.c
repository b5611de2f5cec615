/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

RUBY_FUNC_EXPORTED void Init_native(void);

void Init_native(void) {
  VALUE module = rb_define_module("Tracepoint");

#ifdef HAVE_RB_EXT_RACTOR_SAFE
  rb_ext_ractor_safe(true);
#endif
  rb_define_module_under(module, "Registry");
  tp_init_names();
  tp_init_entry(module);
  tp_init_switches(module);
  tp_init_registry(module);
  tp_init_values(module);
  tp_init_undeclared(module);
  tp_init_fire(module);
  tp_init_span(module);
  tp_init_method(module);
  tp_init_capture(module);
}
