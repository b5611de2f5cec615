/*
 * Events that fire while a test captures (tracepoint/testing). Every probe is
 * then watched, and its operands are stored here as a tracer would read them.
 *
 * Storing an event creates no Ruby object: it may come from any Ractor, or from
 * a span that ends because of an exception.
 */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <stdlib.h>
#include <string.h>

typedef struct event {
  struct event *next;
  const tp_entry *entry;
  uint8_t role; /* sdt_probe_role */
  uint8_t count;
  uint8_t types[SDT_MAX_OPERANDS]; /* at this time: an open type may settle */
  uint64_t operands[SDT_MAX_OPERANDS];
  char texts[]; /* copies of strings, to which the operands point */
} event;

/* Protected by the lock. */
static event *first;
static event **last = &first;
static size_t total;
static size_t missed; /* events lost because memory ran out */

/* An open type may have settled after nil was converted as an Integer. */
static bool is_text(uint8_t type, uint64_t operand) {
  return (type == SDT_STRING || type == SDT_SYMBOL) && operand != 0 &&
         operand != (uint64_t)SDT_NIL_INTEGER;
}

static const char *text_of(uint64_t operand) {
  return (const char *)(uintptr_t)operand;
}

static event *event_create(const uint8_t *types, const uint64_t *operands,
                           int count) {
  size_t length = 0;
  event *it;
  char *end;

  for (int i = 0; i < count; i++) {
    if (is_text(types[i], operands[i]))
      length += strlen(text_of(operands[i])) + 1;
  }
  it = calloc(1, sizeof(*it) + length);
  if (!it)
    return NULL;
  it->count = (uint8_t)count;
  memcpy(it->types, types, (size_t)count);
  memcpy(it->operands, operands, (size_t)count * sizeof(*operands));
  end = it->texts;
  for (int i = 0; i < count; i++) {
    if (is_text(types[i], operands[i])) {
      it->operands[i] = (uint64_t)(uintptr_t)end;
      end = stpcpy(end, text_of(operands[i])) + 1;
    }
  }
  return it;
}

void tp_capture(const tp_entry *entry, const uint64_t *operands, int lead,
                int count) {
  uint8_t types[SDT_MAX_OPERANDS] = {SDT_INTEGER, SDT_INTEGER};
  event *it;

  memcpy(types + lead, entry->types, (size_t)count);
  it = event_create(types, operands, lead + count);
  if (it) {
    it->entry = entry;
    it->role = !entry->end ? SDT_EVENT : lead ? SDT_SPAN_END : SDT_SPAN_BEGIN;
  }
  tp_lock();
  if (!it) {
    missed++;
  } else if (tp_captures) {
    *last = it;
    last = &it->next;
    total++;
    it = NULL;
  }
  tp_unlock();
  free(it); /* the last capture has ended in the meantime */
}

/* Call with the lock held. Returns the captured events. */
static event *stop_capturing(void) {
  event *it = first;

  first = NULL;
  last = &first;
  total = missed = 0;
  __atomic_store_n(&tp_captures, 0, __ATOMIC_RELAXED);
  tp_watch_all();
  return it;
}

static void free_events(event *it) {
  while (it) {
    event *next = it->next;

    free(it);
    it = next;
  }
}

void tp_forget_captures(void) {
  if (tp_captures)
    free_events(stop_capturing());
}

/* ------------------------------------------------------------- Ruby's values */

static VALUE value_of(uint8_t type, uint64_t operand) {
  double number;

  switch ((sdt_type)type) {
  case SDT_STRING:
  case SDT_SYMBOL:
    return is_text(type, operand) ? rb_utf8_str_new_cstr(text_of(operand)) : Qnil;
  case SDT_FLOAT:
    memcpy(&number, &operand, sizeof(number));
    return operand == SDT_NIL_FLOAT ? Qnil : DBL2NUM(number);
  case SDT_BOOL:
    return operand == SDT_NIL_BOOL ? Qnil : operand ? Qtrue : Qfalse;
  case SDT_INTEGER:
  case SDT_OPEN:
    break;
  }
  return operand == (uint64_t)SDT_NIL_INTEGER ? Qnil : LL2NUM((int64_t)operand);
}

static VALUE values_of(const event *it) {
  VALUE values = rb_ary_new_capa(it->count);

  for (int i = 0; i < it->count; i++)
    rb_ary_push(values, value_of(it->types[i], it->operands[i]));
  return values;
}

/* ------------------------------------------------------------------ Registry */

/* Registry.begin_capture: return a mark for `captured`. */
static VALUE registry_begin_capture(VALUE self) {
  size_t mark;

  (void)self;
  tp_lock();
  mark = total;
  __atomic_fetch_add(&tp_captures, 1, __ATOMIC_RELAXED);
  tp_watch_all();
  tp_unlock();
  return SIZET2NUM(mark);
}

/* Registry.captured(mark): return [entry, role, operands] of each event since
 * the mark. Events stay in place until end_capture. */
static VALUE registry_captured(VALUE self, VALUE mark) {
  size_t index = 0, from = NUM2SIZET(mark), until;
  VALUE ary = rb_ary_new();
  const event *it;
  bool whole;

  (void)self;
  tp_lock();
  it = first;
  until = total;
  whole = missed == 0;
  tp_unlock();
  if (!whole)
    rb_memerror();
  for (; index < until; it = it->next, index++) {
    if (index >= from)
      rb_ary_push(ary, rb_ary_new_from_args(3, it->entry->self,
                                            INT2FIX(it->role), values_of(it)));
  }
  return ary;
}

static VALUE registry_end_capture(VALUE self) {
  event *it = NULL;

  (void)self;
  tp_lock();
  if (tp_captures > 1)
    __atomic_fetch_sub(&tp_captures, 1, __ATOMIC_RELAXED);
  else if (tp_captures == 1) /* 0: a forked child, outside its parent's block */
    it = stop_capturing();
  tp_unlock();
  free_events(it);
  return Qnil;
}

void tp_init_capture(VALUE module) {
  VALUE registry = rb_const_get(module, rb_intern("Registry"));

  rb_define_singleton_method(registry, "begin_capture", registry_begin_capture, 0);
  rb_define_singleton_method(registry, "captured", registry_captured, 1);
  rb_define_singleton_method(registry, "end_capture", registry_end_capture, 0);
}
