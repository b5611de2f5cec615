/*
 * Which probes there are. Definitions come one at a time, under a lock that is
 * never held across anything that may allocate a Ruby object: a Ractor that
 * collects garbage waits for all others, and must not wait for one that waits
 * for this lock.
 */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <pthread.h>
#include <ruby/encoding.h>
#include <stdlib.h>
#include <string.h>

/* "provider:name" and its NUL. */
#define KEY_SIZE (2 * SDT_MAX_NAME + 2)
/* The names that an entry takes: its own, and for a span its two probes'; each
 * with the provider and, of the default provider, without. */
#define MAX_NAMES 3
#define MAX_KEYS (2 * MAX_NAMES)

typedef struct provider {
  VALUE self;
  VALUE name; /* Symbol */
  bool disabled;
  struct provider *next;
} provider;

/* The key of an entry: "provider:name", or "name". Never freed. */
typedef struct name_key {
  tp_entry *entry;
  uint64_t hash;
  size_t length;
  char text[];
} name_key;

/* Like tp_symbols; a slot is one pointer, so that it is published by one store. */
typedef struct name_table {
  size_t mask;
  size_t used;
  struct name_table *outgrown;
  name_key *slots[];
} name_table;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sdt_pool *pool;
static char default_provider[SDT_MAX_NAME + 1];
static int utf8_index, ascii_index;

/* Lists are appended to under the lock and read without it. */
static tp_entry *entries;
static tp_entry **entries_tail = &entries;
static provider *providers;
static provider **providers_tail = &providers;

/* Written under the lock, and read without it, as by those who fire. */
static name_table *names;
tp_symbols *tp_symbols_current;
bool tp_strict;
bool tp_off;

/* The address that the probe of a dead entry watches. */
static const uint64_t idle_site = SDT_SITE_IDLE;
static const uint64_t busy_site = ~SDT_SITE_IDLE;

static VALUE cProbe, cSpan, cProvider;

void tp_lock(void) { pthread_mutex_lock(&lock); }

void tp_unlock(void) { pthread_mutex_unlock(&lock); }

/* ------------------------------------------------------------ Ruby's objects */

static void entry_mark(void *data) {
  tp_entry *entry = data;

  rb_gc_mark(entry->provider);
  rb_gc_mark(entry->name);
  rb_gc_mark(entry->labels);
  rb_gc_mark(entry->untraced);
}

static void provider_mark(void *data) {
  rb_gc_mark(((provider *)data)->name);
}

static const rb_data_type_t entry_type = {
    .wrap_struct_name = "tracepoint/probe",
    .function = {.dmark = entry_mark, .dfree = RUBY_DEFAULT_FREE},
    .flags = TP_TYPED_FLAGS,
};

static const rb_data_type_t provider_type = {
    .wrap_struct_name = "tracepoint/provider",
    .function = {.dmark = provider_mark, .dfree = RUBY_DEFAULT_FREE},
    .flags = TP_TYPED_FLAGS,
};

static provider *provider_of(VALUE self) {
  return (provider *)RTYPEDDATA_DATA(self);
}

static VALUE provider_new(VALUE name) {
  provider *p;
  VALUE self = TypedData_Make_Struct(cProvider, provider, &provider_type, p);

  p->self = self;
  RB_OBJ_WRITE(self, &p->name, name);
  return rb_obj_freeze(self);
}

static bool is_open(const tp_entry *entry) {
  return memchr(entry->types, SDT_OPEN, entry->count) != NULL;
}

/* Calls with the right number of arguments go the quick way, if nothing is to
 * be learned from them, nor to be put into order. */
static void set_arity(tp_entry *entry, bool span) {
  uint8_t arity = is_open(entry) ? TP_NO_ARITY : entry->count;

  __atomic_store_n(&entry->fire_arity, span ? TP_NO_ARITY : arity,
                   __ATOMIC_RELAXED);
  __atomic_store_n(&entry->span_arity,
                   span && !entry->undeclared ? arity : TP_NO_ARITY,
                   __ATOMIC_RELAXED);
}

/*
 * keywords: how many of the arguments have names; nil of what is declared.
 * results: how many of the types, the last ones, are results.
 */
static VALUE entry_new(bool span, VALUE provider, VALUE name, VALUE types,
                       VALUE labels, VALUE keywords, int results) {
  tp_entry *entry;
  VALUE self = TypedData_Make_Struct(span ? cSpan : cProbe, tp_entry,
                                     &entry_type, entry);

  entry->self = self;
  entry->count = (uint8_t)(RARRAY_LEN(types) - results);
  entry->results = (uint8_t)results;
  entry->undeclared = !NIL_P(keywords);
  entry->keywords = entry->undeclared ? (uint8_t)NUM2INT(keywords) : 0;
  for (int i = 0; i < entry->count + results; i++)
    entry->types[i] = (uint8_t)NUM2INT(RARRAY_AREF(types, i));
  set_arity(entry, span);
  RB_OBJ_WRITE(self, &entry->provider, provider);
  RB_OBJ_WRITE(self, &entry->name, name);
  RB_OBJ_WRITE(self, &entry->labels, labels);
  if (span)
    RB_OBJ_WRITE(self, &entry->untraced, tp_untraced_measurement(entry));
  return rb_obj_freeze(self);
}

/* ----------------------------------------------------------------- the lists */

static void append_entry(tp_entry *entry) {
  __atomic_store_n(entries_tail, entry, __ATOMIC_RELEASE);
  entries_tail = &entry->next;
}

static void append_provider(provider *p) {
  __atomic_store_n(providers_tail, p, __ATOMIC_RELEASE);
  providers_tail = &p->next;
}

#define EACH(type, it, head)                                                   \
  for (type *it = __atomic_load_n(&(head), __ATOMIC_ACQUIRE); it;              \
       it = __atomic_load_n(&it->next, __ATOMIC_ACQUIRE))

static provider *find_provider(VALUE name) {
  EACH(provider, p, providers) {
    if (p->name == name)
      return p;
  }
  return NULL;
}

/* -------------------------------------------------------------------- names */

static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ (hash >> 32);
}

static uint64_t name_hash(const char *text, size_t length) {
  uint64_t hash = length, word;

  for (; length >= sizeof(word); length -= sizeof(word), text += sizeof(word)) {
    memcpy(&word, text, sizeof(word));
    hash = mix(hash, word);
  }
  for (word = 0; length > 0; length--)
    word = word << 8 | (unsigned char)text[length - 1];
  return mix(hash, word);
}

/* Any thread, without the lock. */
static tp_entry *names_get(const char *text, size_t length) {
  const name_table *table = __atomic_load_n(&names, __ATOMIC_ACQUIRE);
  uint64_t hash = name_hash(text, length);

  for (size_t i = (size_t)hash & table->mask;; i = (i + 1) & table->mask) {
    const name_key *key = __atomic_load_n(&table->slots[i], __ATOMIC_ACQUIRE);

    if (!key)
      return NULL;
    if (key->hash == hash && key->length == length &&
        memcmp(key->text, text, length) == 0)
      return key->entry;
  }
}

static name_table *names_create(size_t size) {
  name_table *table = calloc(1, sizeof(*table) + size * sizeof(name_key *));

  if (table)
    table->mask = size - 1;
  return table;
}

/* Holding the lock, as what follows. There is room: names_reserve. */
static void names_set(name_table *table, name_key *key) {
  size_t i = (size_t)key->hash & table->mask;

  while (table->slots[i])
    i = (i + 1) & table->mask;
  __atomic_store_n(&table->slots[i], key, __ATOMIC_RELEASE);
  table->used++;
}

static bool names_reserve(size_t more) {
  name_table *old = names, *table;

  if ((old->used + more) * 2 <= old->mask + 1)
    return true;
  table = names_create((old->mask + 1) * 2);
  if (!table)
    return false;
  for (size_t i = 0; i <= old->mask; i++) {
    if (old->slots[i])
      names_set(table, old->slots[i]);
  }
  table->outgrown = old;
  __atomic_store_n(&names, table, __ATOMIC_RELEASE);
  return true;
}

/* --------------------------------------------------------- symbols (locked) */

static tp_symbols *symbols_create(unsigned bits) {
  size_t size = (size_t)1 << bits;
  tp_symbols *table = calloc(1, sizeof(*table) + size * sizeof(tp_slot));

  if (table) {
    table->shift = 64 - bits;
    table->mask = size - 1;
  }
  return table;
}

static void symbols_set(tp_symbols *table, VALUE symbol, tp_entry *entry) {
  size_t i = tp_symbol_hash(table, symbol);

  while (table->slots[i].key)
    i = (i + 1) & table->mask;
  table->slots[i].entry = entry;
  __atomic_store_n(&table->slots[i].key, symbol, __ATOMIC_RELEASE);
  table->used++;
}

static bool symbols_reserve(size_t more) {
  tp_symbols *old = tp_symbols_current, *table;

  if ((old->used + more) * 2 <= old->mask + 1)
    return true;
  table = symbols_create(64 - old->shift + 1);
  if (!table)
    return false;
  for (size_t i = 0; i <= old->mask; i++) {
    if (old->slots[i].key)
      symbols_set(table, old->slots[i].key, old->slots[i].entry);
  }
  table->outgrown = old;
  __atomic_store_n(&tp_symbols_current, table, __ATOMIC_RELEASE);
  return true;
}

/* --------------------------------------------------------------- definition */

typedef struct definition {
  tp_entry *entry;
  const char *provider_name;
  const char *name;
  VALUE full_name; /* Symbol: "provider:name" */
  const char *method; /* NULL: it measures no method, or one of too long a name */
  bool of_default_provider;
  sdt_operand operands[SDT_MAX_OPERANDS];
  name_key *keys[MAX_KEYS]; /* each name's with the provider first */
  int key_count;
  /* out */
  tp_entry *existing;
  bool over_limit;
  bool out_of_memory;
  sdt_error error;
} definition;

static name_key *key_create(tp_entry *entry, const char *text) {
  size_t length = strlen(text);
  name_key *key = malloc(sizeof(*key) + length + 1);

  if (!key)
    return NULL;
  key->entry = entry;
  key->length = length;
  key->hash = name_hash(text, length);
  memcpy(key->text, text, length + 1);
  return key;
}

static bool make_keys(definition *d, bool span) {
  static const char *const suffixes[MAX_NAMES] = {"", "__begin", "__end"};
  size_t bare = strlen(d->provider_name) + 1;

  for (int i = 0; i < (span ? MAX_NAMES : 1); i++) {
    char text[KEY_SIZE + sizeof("__begin")];

    snprintf(text, sizeof(text), "%s:%s%s", d->provider_name, d->name,
             suffixes[i]);
    for (int j = 0; j <= (int)d->of_default_provider; j++) {
      name_key *key = key_create(d->entry, text + (j ? bare : 0));

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

/* The probe's name behind the provider: 0, or a span's first (1), second (2). */
static const char *probe_name(const definition *d, int name) {
  const name_key *key = d->keys[d->of_default_provider ? 2 * name : name];

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

/* Every call takes the slow way: in strict mode, and while a test captures. */
static void set_watch(tp_entry *entry) {
  bool on = tp_strict || tp_captures > 0;

  if (entry->dead) {
    entry->probe->watch = on ? &busy_site : &idle_site;
    return;
  }
  sdt_watch_always(entry->probe, on);
  if (entry->end)
    sdt_watch_always(entry->end, on);
}

static void set_disabled(tp_entry *entry, bool on) {
  void (*set)(sdt_probe *) = on ? sdt_probe_disable : sdt_probe_enable;

  if (entry->dead) {
    entry->probe->disabled = on;
    return;
  }
  set(entry->probe);
  if (entry->end)
    set(entry->end);
}

/*
 * A program must not fail because it cannot be traced: the entry is there, and
 * nobody ever traces it.
 */
static bool make_dead(tp_entry *entry, bool span) {
  sdt_probe *probe = calloc(1, sizeof(*probe));

  if (!probe)
    return false;
  probe->watch = probe->site = &idle_site;
  probe->count = entry->count;
  entry->dead = true;
  entry->probe = probe;
  entry->end = span ? probe : NULL;
  tp_count(TP_FAILED);
  return true;
}

/* Holding the lock. */
static void define(definition *d, bool span) {
  tp_entry *entry = d->entry;

  for (int i = 0; i < d->key_count; i++) {
    d->existing = names_get(d->keys[i]->text, d->keys[i]->length);
    if (d->existing)
      return;
  }
  d->over_limit = entry->undeclared && !tp_below_limit();
  if (d->over_limit)
    return;
  d->out_of_memory = !names_reserve(MAX_KEYS) || !symbols_reserve(2);
  if (d->out_of_memory)
    return;
  if ((span ? define_span(d) : define_event(d)) != SDT_OK &&
      !make_dead(entry, span)) {
    d->out_of_memory = true;
    return;
  }

  set_watch(entry);
  if (provider_of(entry->provider)->disabled)
    set_disabled(entry, true);
  for (int i = 0; i < d->key_count; i++)
    names_set(names, d->keys[i]);
  d->key_count = 0;
  symbols_set(tp_symbols_current, d->full_name, entry);
  if (d->of_default_provider)
    symbols_set(tp_symbols_current, entry->name, entry);
  append_entry(entry);
  if (entry->undeclared)
    __atomic_fetch_add(&tp_undeclared, 1, __ATOMIC_RELAXED);
}

/* The one VALUE of a name, which is never freed and never moves. */
static VALUE permanent_symbol(VALUE name) {
  VALUE symbol = ID2SYM(rb_intern_str(name));

  if (!STATIC_SYM_P(symbol))
    rb_gc_register_mark_object(symbol);
  return symbol;
}

static VALUE intern_provider(VALUE name) {
  VALUE symbol = permanent_symbol(name);
  VALUE candidate = provider_new(symbol);
  provider *p;

  tp_lock();
  p = find_provider(symbol);
  if (!p)
    append_provider(provider_of(candidate));
  tp_unlock();
  if (p)
    return p->self;
  rb_gc_register_mark_object(candidate);
  return candidate;
}

/*
 * Registry.add(span, provider, name, operand_names, type_codes, labels,
 * keywords, results, method): the new entry, or the one that has one of its names
 * already, or nil if it would be one undeclared too many. What it is given was
 * checked in Ruby.
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
  entry = entry_new(RTEST(span), intern_provider(provider_name),
                    permanent_symbol(name), types, labels, keywords,
                    results);
  d.entry = tp_entry_of(entry);
  d.full_name = permanent_symbol(
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

/* -------------------------------------------------------- what comes later */

static void settle(tp_entry *entry, int index, sdt_type type) {
  if (entry->types[index] != SDT_OPEN)
    return;
  if (!entry->dead) {
    /* Another process that shares the note may have been first. */
    sdt_settle(entry->probe, (size_t)index, type, &type);
    if (entry->end)
      sdt_settle(entry->end, (size_t)index + 2, type, &type);
  }
  __atomic_store_n(&entry->types[index], (uint8_t)type, __ATOMIC_RELAXED);
  set_arity(entry, entry->end != NULL);
}

void tp_settle(tp_entry *entry, int index, sdt_type type) {
  tp_lock();
  settle(entry, index, type);
  tp_unlock();
}

/* Registry.declared(entry, type_codes): what was only used is declared now. */
static VALUE registry_declared(VALUE self, VALUE object, VALUE types) {
  tp_entry *entry = rb_check_typeddata(object, &entry_type);
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
    set_arity(entry, entry->end != NULL);
    __atomic_fetch_sub(&tp_undeclared, 1, __ATOMIC_RELAXED);
  }
  tp_unlock();
  return object;
}

/* ------------------------------------------------------------------- lookup */

/* Bytes of "x" are a character of their own in UTF-16, and others. */
static bool is_ascii_compatible(VALUE name) {
  int index = RB_ENCODING_GET_INLINED(name);

  return index == utf8_index || index == ascii_index ||
         rb_enc_asciicompat(rb_enc_get(name));
}

tp_entry *tp_find(VALUE name) {
  tp_entry *entry;

  if (SYMBOL_P(name))
    name = rb_sym2str(name);
  else if (!RB_TYPE_P(name, T_STRING))
    return NULL;
  if (RSTRING_LEN(name) >= KEY_SIZE)
    return NULL;
  entry = names_get(RSTRING_PTR(name), (size_t)RSTRING_LEN(name));
  return entry && is_ascii_compatible(name) ? entry : NULL;
}

static VALUE registry_find(VALUE self, VALUE name) {
  const tp_entry *entry = tp_find(name);

  (void)self;
  return entry ? entry->self : Qnil;
}

static VALUE registry_entries(VALUE self) {
  VALUE ary = rb_ary_new();

  (void)self;
  EACH(tp_entry, entry, entries) rb_ary_push(ary, entry->self);
  return ary;
}

static VALUE registry_providers(VALUE self) {
  VALUE ary = rb_ary_new();

  (void)self;
  EACH(provider, p, providers) rb_ary_push(ary, p->self);
  return ary;
}

/* Addresses of an entry's sites: for those who patch or look for themselves. */
static VALUE registry_sites(VALUE self, VALUE object) {
  tp_entry *entry = rb_check_typeddata(object, &entry_type);
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

/* ----------------------------------------------------------------- switches */

void tp_watch_all(void) {
  EACH(tp_entry, entry, entries) set_watch(entry);
}

static VALUE module_strict(VALUE self) {
  (void)self;
  return tp_strict ? Qtrue : Qfalse;
}

static VALUE module_set_strict(VALUE self, VALUE on) {
  (void)self;
  tp_lock();
  tp_strict = RTEST(on);
  tp_watch_all();
  tp_unlock();
  return on;
}

static VALUE module_enable(VALUE self) {
  (void)self;
  __atomic_store_n(&tp_off, false, __ATOMIC_RELAXED);
  return Qnil;
}

static VALUE module_disable(VALUE self) {
  (void)self;
  __atomic_store_n(&tp_off, true, __ATOMIC_RELAXED);
  return Qnil;
}

static VALUE module_toggle(VALUE self) {
  bool off = __atomic_load_n(&tp_off, __ATOMIC_RELAXED);

  (void)self;
  while (!__atomic_compare_exchange_n(&tp_off, &off, !off, false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
  return Qnil;
}

static VALUE module_disabled_p(VALUE self) {
  (void)self;
  return __atomic_load_n(&tp_off, __ATOMIC_RELAXED) ? Qtrue : Qfalse;
}

static void switch_provider(VALUE self, bool disabled) {
  tp_lock();
  provider_of(self)->disabled = disabled;
  EACH(tp_entry, entry, entries) {
    if (entry->provider == self)
      set_disabled(entry, disabled);
  }
  tp_unlock();
}

static VALUE provider_disable(VALUE self) {
  switch_provider(self, true);
  return self;
}

static VALUE provider_enable(VALUE self) {
  switch_provider(self, false);
  return self;
}

static VALUE provider_enabled_p(VALUE self) {
  return provider_of(self)->disabled ? Qfalse : Qtrue;
}

static VALUE provider_name(VALUE self) { return provider_of(self)->name; }

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

/* -------------------------------------------------------------------- start */


static void after_fork(void) {
  tp_forget_captures();
  tp_unlock();
}

VALUE tp_define_class(VALUE module, const char *name) {
  VALUE class = rb_define_class_under(module, name, rb_cObject);

  rb_undef_alloc_func(class);
  rb_undef_method(rb_singleton_class(class), "new");
  return class;
}

static void define_readers(VALUE class) {
  rb_define_method(class, "name", entry_name, 0);
  rb_define_method(class, "provider", entry_provider, 0);
  rb_define_method(class, "operands", entry_operands, 0);
  rb_define_method(class, "results", entry_results, 0);
}

void tp_init_registry(VALUE module) {
  VALUE registry = rb_define_module_under(module, "Registry");
  VALUE name = rb_const_get(module, rb_intern("DEFAULT_PROVIDER"));

  snprintf(default_provider, sizeof(default_provider), "%s",
           StringValueCStr(name));
  pool = sdt_pool_create();
  tp_symbols_current = symbols_create(6);
  names = names_create(64);
  utf8_index = rb_utf8_encindex();
  ascii_index = rb_usascii_encindex();
  if (!pool || !tp_symbols_current || !names)
    rb_memerror();
  /* After the library's own, so that the two locks are taken in the order in
   * which a definition takes them. */
  pthread_atfork(tp_lock, tp_unlock, after_fork);

  cProbe = tp_define_class(module, "Probe");
  cSpan = tp_define_class(module, "Span");
  cProvider = tp_define_class(module, "Provider");
  define_readers(cProbe);
  define_readers(cSpan);
  rb_define_method(cProvider, "name", provider_name, 0);
  rb_define_method(cProvider, "enable", provider_enable, 0);
  rb_define_method(cProvider, "disable", provider_disable, 0);
  rb_define_method(cProvider, "enabled?", provider_enabled_p, 0);

  rb_define_singleton_method(registry, "add", registry_add, 9);
  rb_define_singleton_method(registry, "declared", registry_declared, 2);
  rb_define_singleton_method(registry, "find", registry_find, 1);
  rb_define_singleton_method(registry, "entries", registry_entries, 0);
  rb_define_singleton_method(registry, "providers", registry_providers, 0);
  rb_define_singleton_method(registry, "sites", registry_sites, 1);
  rb_define_singleton_method(registry, "figures", registry_figures, 0);
  rb_define_singleton_method(module, "enable", module_enable, 0);
  rb_define_singleton_method(module, "disable", module_disable, 0);
  rb_define_singleton_method(module, "toggle", module_toggle, 0);
  rb_define_singleton_method(module, "disabled?", module_disabled_p, 0);
  rb_define_singleton_method(module, "strict", module_strict, 0);
  rb_define_singleton_method(module, "strict=", module_set_strict, 1);
}
