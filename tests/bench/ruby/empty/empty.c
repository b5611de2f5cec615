/* The least that a method written in C can cost, to measure others against. */
#include <ruby.h>

static VALUE empty(int argc, VALUE *argv, VALUE self) { return Qfalse; }

static VALUE empty2(VALUE self, VALUE a, VALUE b) { return Qfalse; }

static VALUE yielding(int argc, VALUE *argv, VALUE self) {
  return rb_yield_values(0);
}

void Init_empty(void) {
  VALUE class = rb_define_class("EmptyC", rb_cObject);

  rb_define_method(class, "call", empty, -1);
  rb_define_method(class, "call2", empty2, 2);
  rb_define_method(class, "measure", yielding, -1);
  rb_define_singleton_method(class, "call", empty, -1);
}
