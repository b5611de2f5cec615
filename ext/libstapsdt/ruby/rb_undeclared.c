/*
 * Undeclared probes: the first fire or span with a name creates the probe from
 * its arguments. Nothing here raises except in strict mode.
 */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <string.h>

size_t tp_undeclared;
size_t tp_undeclared_limit = 1000;

static ID id_declare;
static VALUE sym_event;
static VALUE eDefinition;

/* ----------------------------------------------------------------- warnings */

static VALUE warn(VALUE message) {
  rb_warn("%" PRIsVALUE, message);
  return Qnil;
}

static VALUE no_warning(VALUE unused, VALUE error) {
  (void)unused;
  (void)error;
  return Qnil;
}

/* The program may have made Warning.warn raise. */
static void warn_once(bool *warned, VALUE message) {
  if (!__atomic_exchange_n(warned, true, __ATOMIC_RELAXED))
    rb_rescue2(warn, message, no_warning, Qnil, rb_eStandardError, (VALUE)0);
}

void tp_warn_dead(const tp_entry *entry, const char *message) {
  static bool warned;

  warn_once(&warned, rb_sprintf("%" PRIsVALUE " cannot be traced: %s",
                                entry->self, message));
}

/* -------------------------------------------------------------------- losses */

void tp_drop(const tp_entry *entry, int given) {
  if (tp_strict)
    tp_raise_arity(entry, given);
  tp_count(TP_DROPPED);
}

bool tp_below_limit(void) {
  return __atomic_load_n(&tp_undeclared, __ATOMIC_RELAXED) <
         __atomic_load_n(&tp_undeclared_limit, __ATOMIC_RELAXED);
}

static VALUE limit_message(void) {
  return rb_sprintf("too many undeclared probes: the limit is %" PRIuSIZE
                    "; declare them with Tracepoint.define, or raise "
                    "Tracepoint.undeclared_limit",
                    __atomic_load_n(&tp_undeclared_limit, __ATOMIC_RELAXED));
}

static void over_limit(void) {
  static bool warned;

  if (tp_strict)
    rb_exc_raise(rb_exc_new_str(eDefinition, limit_message()));
  tp_count(TP_OVER_LIMIT);
  if (!__atomic_load_n(&warned, __ATOMIC_RELAXED))
    warn_once(&warned, limit_message());
}

static bool refused; /* whether the warning was already given */

/* Drop an event whose name or arguments cannot make a probe. */
static void refuse(VALUE message) {
  tp_count(TP_DROPPED);
  warn_once(&refused, message);
}

/* -------------------------------------------------------- unsuitable calls */

/* Maximum length of a name that leaves room for "__begin". */
#define SPAN_MAX_NAME (SDT_MAX_NAME - 7)
#define SPAN_MAX_OPERANDS (SDT_MAX_OPERANDS - 2)

static bool is_name(const char *text, size_t length, size_t longest) {
  if (length == 0 || length > longest)
    return false;
  for (size_t i = 0; i < length; i++) {
    if (!ISALNUM(text[i]) && text[i] != '_')
      return false;
  }
  return true;
}

/* Check for "name" or "provider:name", like Names.split. */
static bool is_full_name(VALUE name, size_t longest) {
  const char *text, *colon;
  size_t length;

  if (SYMBOL_P(name))
    name = rb_sym2str(name);
  else if (!RB_TYPE_P(name, T_STRING))
    return false;
  text = RSTRING_PTR(name);
  length = (size_t)RSTRING_LEN(name);
  if (length > 2 * SDT_MAX_NAME + 1)
    return false;
  colon = memchr(text, ':', length);
  if (!colon)
    return is_name(text, length, longest);
  return is_name(text, (size_t)(colon - text), SDT_MAX_NAME) &&
         is_name(colon + 1, length - (size_t)(colon + 1 - text), longest);
}

/*
 * Return whether Ruby code would certainly refuse the call. Ruby code runs only
 * for the first refusal, to get the message. It refuses more than this, such as
 * a name in UTF-16, but it never accepts a call that this rejects.
 */
static bool is_refused(VALUE kind, int argc, const VALUE *argv) {
  bool span = kind != sym_event;

  return argc - 1 > (span ? SPAN_MAX_OPERANDS : SDT_MAX_OPERANDS) ||
         !is_full_name(argv[0], span ? SPAN_MAX_NAME : SDT_MAX_NAME);
}

/* --------------------------------------------------------------- declaration */

tp_entry *tp_declare(VALUE module, VALUE kind, int argc, const VALUE *argv) {
  VALUE keywords = Qnil, entry = Qnil;

  if (tp_below_limit() && !tp_strict &&
      __atomic_load_n(&refused, __ATOMIC_RELAXED) &&
      is_refused(kind, argc, argv)) {
    tp_count(TP_DROPPED);
    return NULL;
  }
  if (argc > 1 && rb_keyword_given_p())
    keywords = argv[--argc];
  if (tp_below_limit())
    entry = rb_funcall(module, id_declare, 4, kind, argv[0],
                       rb_ary_new_from_values(argc - 1, argv + 1), keywords);
  if (NIL_P(entry))
    over_limit();
  else if (RB_TYPE_P(entry, T_STRING))
    refuse(entry);
  else
    return tp_entry_of(entry);
  return NULL;
}

/* ----------------------------------------------------------------- arguments */

static bool arrange_keywords(const tp_entry *entry, VALUE keywords,
                             VALUE *ret) {
  int positional = entry->count - entry->keywords;

  if (RHASH_SIZE(keywords) != entry->keywords)
    return false;
  for (int i = positional; i < entry->count; i++) {
    ret[i] = rb_hash_lookup2(keywords, RARRAY_AREF(entry->labels, i), Qundef);
    if (ret[i] == Qundef)
      return false;
  }
  return true;
}

bool tp_arrange(const tp_entry *entry, int argc, const VALUE *argv,
                VALUE *ret) {
  int positional = entry->count;

  if (entry->keywords > 0 && argc > 0 && rb_keyword_given_p()) {
    positional -= entry->keywords;
    argc--;
    if (!arrange_keywords(entry, argv[argc], ret))
      return false;
  }
  if (argc != positional)
    return false;
  for (int i = 0; i < positional; i++)
    ret[i] = argv[i];
  return true;
}

/* The same rules as in Operands.infer. */
static sdt_type type_of(VALUE value) {
  if (RB_INTEGER_TYPE_P(value))
    return SDT_INTEGER;
  if (RB_FLOAT_TYPE_P(value))
    return SDT_FLOAT;
  if (SYMBOL_P(value))
    return SDT_SYMBOL;
  return value == Qtrue || value == Qfalse ? SDT_BOOL : SDT_STRING;
}

/* Call with the lock held. */
static void settle(tp_entry *entry, int index, sdt_type type) {
  if (entry->types[index] != SDT_OPEN)
    return;
  if (!entry->dead) {
    /* Another process that shares the note may have been faster. */
    sdt_settle(entry->probe, (size_t)index, type, &type);
    if (entry->end)
      sdt_settle(entry->end, (size_t)index + 2, type, &type);
  }
  __atomic_store_n(&entry->types[index], (uint8_t)type, __ATOMIC_RELAXED);
  tp_set_arity(entry, entry->end != NULL);
}

/* Give an open operand its type, unless it got one in the meantime. */
static void settle_open(tp_entry *entry, int index, sdt_type type) {
  tp_lock();
  settle(entry, index, type);
  tp_unlock();
}

void tp_learn(tp_entry *entry, const VALUE *values) {
  for (int i = 0; i < entry->count; i++) {
    if (entry->types[i] == SDT_OPEN && !NIL_P(values[i]))
      settle_open(entry, i, type_of(values[i]));
  }
}

static VALUE no_text(VALUE value, VALUE error) {
  (void)error;
  return value;
}

void tp_stringify(const tp_entry *entry, VALUE *values) {
  for (int i = 0; i < entry->count; i++) {
    uint8_t type = entry->types[i];

    if (type != SDT_STRING && type != SDT_SYMBOL)
      continue;
    if (NIL_P(values[i]) || SYMBOL_P(values[i]) ||
        RB_TYPE_P(values[i], T_STRING))
      continue;
    /* If to_s raises, the value stays unchanged and becomes nil. */
    values[i] = rb_rescue2(rb_obj_as_string, values[i], no_text, values[i],
                           rb_eStandardError, rb_eScriptError, rb_eSysStackError,
                           (VALUE)0);
  }
}

/* Registry.declared(entry, type_codes): declare a probe that was only used. */
static VALUE registry_declared(VALUE self, VALUE object, VALUE types) {
  tp_entry *entry = rb_check_typeddata(object, &tp_entry_type);
  uint8_t codes[SDT_MAX_OPERANDS];

  (void)self;
  Check_Type(types, T_ARRAY);
  if (RARRAY_LEN(types) != entry->count + entry->results)
    rb_raise(rb_eArgError, "another number of operands");
  for (int i = 0; i < entry->count; i++)
    codes[i] = (uint8_t)NUM2INT(RARRAY_AREF(types, i));

  tp_lock();
  for (int i = 0; i < entry->count; i++)
    settle(entry, i, (sdt_type)codes[i]);
  if (entry->undeclared) {
    entry->undeclared = false;
    entry->keywords = 0;
    tp_set_arity(entry, entry->end != NULL);
    __atomic_fetch_sub(&tp_undeclared, 1, __ATOMIC_RELAXED);
  }
  tp_unlock();
  return object;
}

/* --------------------------------------------------------------------- limit */

static VALUE registry_limit(VALUE self) {
  (void)self;
  return SIZET2NUM(__atomic_load_n(&tp_undeclared_limit, __ATOMIC_RELAXED));
}

static VALUE registry_set_limit(VALUE self, VALUE limit) {
  (void)self;
  __atomic_store_n(&tp_undeclared_limit, NUM2SIZET(limit), __ATOMIC_RELAXED);
  return limit;
}

void tp_init_undeclared(VALUE module) {
  VALUE registry = rb_const_get(module, rb_intern("Registry"));

  id_declare = rb_intern("declare");
  sym_event = ID2SYM(rb_intern("event"));
  eDefinition = rb_const_get(module, rb_intern("DefinitionError"));
  rb_gc_register_mark_object(eDefinition);
  rb_define_singleton_method(registry, "declared", registry_declared, 2);
  rb_define_singleton_method(registry, "limit", registry_limit, 0);
  rb_define_singleton_method(registry, "limit=", registry_set_limit, 1);
}
