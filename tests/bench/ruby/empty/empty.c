/*
 * Methods with the minimum cost of a C method, and of a C method that traps, for
 * comparison with others.
 *
 * SPDX-License-Identifier: MIT
 */
#include <ruby.h>

static VALUE empty(int argc, VALUE *argv, VALUE self) { return Qfalse; }

static VALUE empty2(VALUE self, VALUE a, VALUE b) { return Qfalse; }

static VALUE yielding(int argc, VALUE *argv, VALUE self) {
  return rb_yield_values(0);
}

static VALUE yield(VALUE unused) { return rb_yield_values(0); }

static VALUE nothing(VALUE unused) { return Qnil; }

/* The minimum of a span: it sees the block's end, however the block ends. */
static VALUE ensuring(int argc, VALUE *argv, VALUE self) {
  return rb_ensure(yield, Qnil, nothing, Qnil);
}

/* The static probe bench:site without operands, as <sys/sdt.h> would make it. */
static VALUE trap(int argc, VALUE *argv, VALUE self) {
  __asm__ volatile("990: nop\n"
                   ".pushsection .note.stapsdt,\"?\",\"note\"\n"
                   ".balign 4\n"
                   ".4byte 992f-991f, 994f-993f, 3\n"
                   "991: .asciz \"stapsdt\"\n"
                   "992: .balign 4\n"
                   "993: .8byte 990b, _.stapsdt.base, 0\n"
                   ".asciz \"bench\"\n"
                   ".asciz \"site\"\n"
                   ".asciz \"\"\n"
                   "994: .balign 4\n"
                   ".popsection\n"
                   ".ifndef _.stapsdt.base\n"
                   ".pushsection .stapsdt.base,\"aG\",\"progbits\","
                   ".stapsdt.base,comdat\n"
                   ".weak _.stapsdt.base\n"
                   ".hidden _.stapsdt.base\n"
                   "_.stapsdt.base: .space 1\n"
                   ".size _.stapsdt.base, 1\n"
                   ".popsection\n"
                   ".endif\n");
  return Qfalse;
}

void Init_empty(void) {
  VALUE class = rb_define_class("EmptyC", rb_cObject);

  rb_define_method(class, "call", empty, -1);
  rb_define_method(class, "call2", empty2, 2);
  rb_define_method(class, "measure", yielding, -1);
  rb_define_method(class, "ensure", ensuring, -1);
  rb_define_method(class, "trap", trap, -1);
  rb_define_singleton_method(class, "call", empty, -1);
}
