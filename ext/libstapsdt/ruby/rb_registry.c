/* Tracepoint::Registry: defines probes one at a time, and lists them. */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* An entry has its own name, and a span also the names of its two probes. Each
 * has a key with the provider; with the default provider, another without. */
#define MAX_NAMES 3
#define MAX_KEYS (2 * MAX_NAMES)

static sdt_pool *pool;
static char default_provider[SDT_MAX_NAME + 1];
static VALUE cProbe, cSpan;

/* --------------------------------------------------------------- definition */

/*
 * keywords: number of arguments with names; nil for declared entries
 * results: number of types, at the end, that belong to results
 */
static VALUE entry_new(bool span, VALUE provider, VALUE name, VALUE types,
                       VALUE labels, VALUE keywords, int results) {
  tp_entry *entry;
  VALUE self = TypedData_Make_Struct(span ? cSpan : cProbe, tp_entry,
                                     &tp_entry_type, entry);

  entry->self = self;
  entry->count = (uint8_t)(RARRAY_LEN(types) - results);
  entry->results = (uint8_t)results;
  entry->undeclared = !NIL_P(keywords);
  entry->keywords = entry->undeclared ? (uint8_t)NUM2INT(keywords) : 0;
  for (int i = 0; i < entry->count + results; i++)
    entry->types[i] = (uint8_t)NUM2INT(RARRAY_AREF(types, i));
  tp_set_arity(entry, span);
  RB_OBJ_WRITE(self, &entry->provider, provider);
  RB_OBJ_WRITE(self, &entry->name, name);
  RB_OBJ_WRITE(self, &entry->labels, labels);
  if (span)
    RB_OBJ_WRITE(self, &entry->untraced, tp_untraced_measurement(entry));
  return rb_obj_freeze(self);
}

typedef struct definition {
  tp_entry *entry;
  const char *provider_name;
  const char *name;
  VALUE full_name; /* Symbol: "provider:name" */
  const char *method; /* NULL: no method, or its name is too long */
  bool of_default_provider;
  sdt_operand operands[SDT_MAX_OPERANDS];
  tp_name_key *keys[MAX_KEYS]; /* per name, the one with the provider first */
  int key_count;
  /* out */
  tp_entry *existing;
  bool over_limit;
  bool out_of_memory;
  sdt_error error;
} definition;

static bool make_keys(definition *d, bool span) {
  static const char *const suffixes[MAX_NAMES] = {"", "__begin", "__end"};
  size_t bare = strlen(d->provider_name) + 1;

  for (int i = 0; i < (span ? MAX_NAMES : 1); i++) {
    char text[TP_KEY_SIZE + sizeof("__begin")];

    snprintf(text, sizeof(text), "%s:%s%s", d->provider_name, d->name,
             suffixes[i]);
    for (int j = 0; j <= (int)d->of_default_provider; j++) {
      tp_name_key *key = tp_key_create(d->entry, text + (j ? bare : 0));

      if (!key)
        return false;
      d->keys[d->key_count++] = key;
    }
  }
  return true;
}

static void free_keys(definition *d) {
  for (int i = 0; i < d->key_count; i++)
    free(d->keys[i]);
  d->key_count = 0;
}

/* Return a probe's name without provider: 0, or a span's two probes (1, 2). */
static const char *probe_name(const definition *d, int name) {
  const tp_name_key *key = d->keys[d->of_default_provider ? 2 * name : name];

  return key->text + strlen(d->provider_name) + 1;
}

static int define_probe(definition *d, int name, sdt_probe_role role,
                        const sdt_operand *operands, size_t count,
                        sdt_probe **ret) {
  if (d->method)
    return sdt_define_method(pool, d->provider_name, probe_name(d, name), role,
                             operands, count, d->method, &d->error, ret);
  return sdt_define(pool, d->provider_name, probe_name(d, name), role, operands,
                    count, &d->error, ret);
}

static int define_event(definition *d) {
  return define_probe(d, 0, SDT_EVENT, d->operands, d->entry->count,
                      &d->entry->probe);
}

static int define_span(definition *d) {
  sdt_operand end[SDT_MAX_OPERANDS] = {
      {.name = "duration_ns", .type = SDT_INTEGER, .role = SDT_DURATION},
      {.name = "outcome", .type = SDT_INTEGER, .role = SDT_OUTCOME},
  };
  size_t count = d->entry->count, all = count + d->entry->results;
  int status = define_probe(d, 1, SDT_SPAN_BEGIN, d->operands, count,
                            &d->entry->probe);

  if (status != SDT_OK)
    return status;
  memcpy(end + 2, d->operands, all * sizeof(*end));
  return define_probe(d, 2, SDT_SPAN_END, end, all + 2, &d->entry->end);
}

/* Call with the lock held. */
static void define(definition *d, bool span) {
  tp_entry *entry = d->entry;

  for (int i = 0; i < d->key_count; i++) {
    d->existing = tp_names_get(d->keys[i]->text, d->keys[i]->length);
    if (d->existing)
      return;
  }
  d->over_limit = entry->undeclared && !tp_below_limit();
  if (d->over_limit)
    return;
  d->out_of_memory = !tp_names_reserve(MAX_KEYS, 2);
  if (d->out_of_memory)
    return;
  if ((span ? define_span(d) : define_event(d)) != SDT_OK &&
      !tp_make_dead(entry, span)) {
    d->out_of_memory = true;
    return;
  }

  tp_add_entry(entry); /* before it can be found: it may be switched off */
  for (int i = 0; i < d->key_count; i++)
    tp_names_set(d->keys[i]);
  d->key_count = 0;
  tp_symbols_set(d->full_name, entry);
  if (d->of_default_provider)
    tp_symbols_set(entry->name, entry);
  if (entry->undeclared)
    __atomic_fetch_add(&tp_undeclared, 1, __ATOMIC_RELAXED);
}

/*
 * Registry.add(span, provider, name, operand_names, type_codes, labels,
 * keywords, results, method): return the new entry, or the existing entry that
 * has one of its names, or nil if it would exceed the limit of undeclared
 * probes. Ruby code has checked the arguments.
 */
static VALUE registry_add(VALUE self, VALUE span, VALUE provider_name,
                          VALUE name, VALUE operand_names, VALUE types,
                          VALUE labels, VALUE keywords, VALUE result_count,
                          VALUE method) {
  definition d = {.provider_name = StringValueCStr(provider_name),
                  .name = StringValueCStr(name)};
  int results = NUM2INT(result_count);
  VALUE entry;

  (void)self;
  Check_Type(operand_names, T_ARRAY);
  Check_Type(types, T_ARRAY);
  Check_Type(labels, T_ARRAY);
  if (RARRAY_LEN(types) > SDT_MAX_OPERANDS - (RTEST(span) ? 2 : 0) ||
      RARRAY_LEN(types) != RARRAY_LEN(operand_names) ||
      RARRAY_LEN(types) != RARRAY_LEN(labels) || results < 0 ||
      results > (RTEST(span) ? RARRAY_LEN(types) : 0))
    rb_raise(rb_eArgError, "too many operands");
  entry = entry_new(RTEST(span), tp_intern_provider(provider_name),
                    tp_permanent_symbol(name), types, labels, keywords,
                    results);
  d.entry = tp_entry_of(entry);
  d.full_name = tp_permanent_symbol(
      rb_sprintf("%s:%s", d.provider_name, d.name));
  d.of_default_provider = strcmp(d.provider_name, default_provider) == 0;
  for (int i = 0; i < d.entry->count + results; i++) {
    VALUE operand_name = RARRAY_AREF(operand_names, i);

    d.operands[i].name =
        NIL_P(operand_name) ? NULL : StringValueCStr(operand_name);
    d.operands[i].type = (sdt_type)d.entry->types[i];
    d.operands[i].role = i < d.entry->count ? SDT_ARGUMENT : SDT_RESULT;
  }
  if (!NIL_P(method) && RSTRING_LEN(StringValue(method)) <= SDT_MAX_METHOD)
    d.method = StringValueCStr(method);
  if (!make_keys(&d, RTEST(span))) {
    free_keys(&d);
    rb_memerror();
  }

  tp_lock();
  define(&d, RTEST(span));
  tp_unlock();

  free_keys(&d);
  if (d.out_of_memory)
    rb_memerror();
  if (d.existing)
    return d.existing->self;
  if (d.over_limit)
    return Qnil;
  rb_gc_register_mark_object(entry);
  if (d.entry->dead)
    tp_warn_dead(d.entry, d.error.message);
  RB_GC_GUARD(operand_names);
  RB_GC_GUARD(provider_name);
  RB_GC_GUARD(name);
  RB_GC_GUARD(method);
  return entry;
}

/* ------------------------------------------------------------------- lookup */

static VALUE registry_find(VALUE self, VALUE name) {
  const tp_entry *entry = tp_find(name);

  (void)self;
  return entry ? entry->self : Qnil;
}

static VALUE registry_entries(VALUE self) {
  VALUE ary = rb_ary_new();

  (void)self;
  TP_EACH(tp_entry, entry, tp_entries) rb_ary_push(ary, entry->self);
  return ary;
}

/* Return the addresses of an entry's sites, for reading or patching them. */
static VALUE registry_sites(VALUE self, VALUE object) {
  tp_entry *entry = rb_check_typeddata(object, &tp_entry_type);
  VALUE ary = rb_ary_new();

  (void)self;
  rb_ary_push(ary, ULL2NUM((uintptr_t)entry->probe->site));
  if (entry->end)
    rb_ary_push(ary, ULL2NUM((uintptr_t)entry->end->site));
  return ary;
}

static VALUE registry_figures(VALUE self) {
  VALUE hash = rb_hash_new();
  sdt_pool_stats stats;

  (void)self;
  sdt_pool_stat(pool, &stats);
  rb_hash_aset(hash, ID2SYM(rb_intern("sites")), SIZET2NUM(stats.probes));
  rb_hash_aset(hash, ID2SYM(rb_intern("images")), SIZET2NUM(stats.images));
  rb_hash_aset(hash, ID2SYM(rb_intern("bytes")), SIZET2NUM(stats.bytes));
  return hash;
}

/* -------------------------------------------------------------------- start */

static void after_fork(void) {
  tp_forget_captures();
  tp_unlock();
}

void tp_init_registry(VALUE module) {
  VALUE registry = rb_const_get(module, rb_intern("Registry"));
  VALUE name = rb_const_get(module, rb_intern("DEFAULT_PROVIDER"));

  snprintf(default_provider, sizeof(default_provider), "%s",
           StringValueCStr(name));
  pool = sdt_pool_create();
  if (!pool)
    rb_memerror();
  /* Registered after the library's handler, so that a fork takes the two locks
   * in the same order as a definition. */
  pthread_atfork(tp_lock, tp_unlock, after_fork);

  cProbe = rb_const_get(module, rb_intern("Probe"));
  cSpan = rb_const_get(module, rb_intern("Span"));
  rb_define_singleton_method(registry, "add", registry_add, 9);
  rb_define_singleton_method(registry, "find", registry_find, 1);
  rb_define_singleton_method(registry, "entries", registry_entries, 0);
  rb_define_singleton_method(registry, "sites", registry_sites, 1);
  rb_define_singleton_method(registry, "figures", registry_figures, 0);
}
