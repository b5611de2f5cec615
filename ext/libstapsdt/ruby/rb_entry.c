/* The Ruby objects of probes and spans. */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <string.h>

static void entry_mark(void *data) {
  tp_entry *entry = data;

  rb_gc_mark(entry->provider);
  rb_gc_mark(entry->name);
  rb_gc_mark(entry->labels);
  rb_gc_mark(entry->untraced);
}

const rb_data_type_t tp_entry_type = {
    .wrap_struct_name = "tracepoint/probe",
    .function = {.dmark = entry_mark, .dfree = RUBY_DEFAULT_FREE},
    .flags = TP_TYPED_FLAGS,
};

static bool is_open(const tp_entry *entry) {
  return memchr(entry->types, SDT_OPEN, entry->count) != NULL;
}

/* The fast path needs the right number of arguments, no types to learn, and no
 * arguments to reorder. */
void tp_set_arity(tp_entry *entry, bool span) {
  uint8_t arity = is_open(entry) ? TP_NO_ARITY : entry->count;

  __atomic_store_n(&entry->fire_arity, span ? TP_NO_ARITY : arity,
                   __ATOMIC_RELAXED);
  __atomic_store_n(&entry->span_arity,
                   span && !entry->undeclared ? arity : TP_NO_ARITY,
                   __ATOMIC_RELAXED);
}

void tp_raise_arity(const tp_entry *entry, int given) {
  rb_raise(rb_eArgError,
           "wrong number of arguments for %" PRIsVALUE
           " (given %d, expected %d)",
           entry->self, given, entry->count);
}

static VALUE entry_name(VALUE self) { return tp_entry_of(self)->name; }

static VALUE entry_provider(VALUE self) { return tp_entry_of(self)->provider; }

static VALUE type_object(sdt_type type) {
  switch (type) {
  case SDT_INTEGER:
    return rb_cInteger;
  case SDT_STRING:
    return rb_cString;
  case SDT_SYMBOL:
    return rb_cSymbol;
  case SDT_FLOAT:
    return rb_cFloat;
  case SDT_BOOL:
    return ID2SYM(rb_intern("bool"));
  case SDT_OPEN:
    break;
  }
  return Qnil;
}

static VALUE types_by_name(const tp_entry *entry, int first, int count) {
  VALUE hash = rb_hash_new();

  for (int i = first; i < first + count; i++)
    rb_hash_aset(hash, RARRAY_AREF(entry->labels, i),
                 type_object((sdt_type)entry->types[i]));
  return rb_obj_freeze(hash);
}

static VALUE entry_operands(VALUE self) {
  const tp_entry *entry = tp_entry_of(self);

  return types_by_name(entry, 0, entry->count);
}

static VALUE entry_results(VALUE self) {
  const tp_entry *entry = tp_entry_of(self);

  return types_by_name(entry, entry->count, entry->results);
}

VALUE tp_define_class(VALUE module, const char *name) {
  VALUE class = rb_define_class_under(module, name, rb_cObject);

  rb_undef_alloc_func(class);
  rb_undef_method(rb_singleton_class(class), "new");
  return class;
}

VALUE tp_permanent_symbol(VALUE name) {
  VALUE symbol = ID2SYM(rb_intern_str(name));

  if (!STATIC_SYM_P(symbol))
    rb_gc_register_mark_object(symbol);
  return symbol;
}

static void define_class(VALUE module, const char *name) {
  VALUE class = tp_define_class(module, name);

  rb_define_method(class, "name", entry_name, 0);
  rb_define_method(class, "provider", entry_provider, 0);
  rb_define_method(class, "operands", entry_operands, 0);
  rb_define_method(class, "results", entry_results, 0);
}

void tp_init_entry(VALUE module) {
  define_class(module, "Probe");
  define_class(module, "Span");
}
