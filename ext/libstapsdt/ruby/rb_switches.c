/*
 * All entries and providers, and the address that each probe watches. It
 * determines whether calls take the slow path, and whether a probe can be
 * traced: strict mode, captures, Tracepoint.disable, disabled providers, and
 * probes without a site.
 */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <stdlib.h>

typedef struct provider {
  VALUE self;
  VALUE name; /* Symbol */
  bool disabled;
  struct provider *next;
} provider;

/* Appended to with the lock held, read without the lock. */
tp_entry *tp_entries;
static tp_entry **entries_tail = &tp_entries;
static provider *providers;
static provider **providers_tail = &providers;

bool tp_strict;
bool tp_off;
unsigned tp_captures;

/* Addresses that the probes of a dead entry watch. */
static const uint64_t idle_site = SDT_SITE_IDLE;
static const uint64_t busy_site = ~SDT_SITE_IDLE;

static VALUE cProvider;

/* ---------------------------------------------------------------- providers */

static void provider_mark(void *data) {
  rb_gc_mark(((provider *)data)->name);
}

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

static void append_provider(provider *p) {
  __atomic_store_n(providers_tail, p, __ATOMIC_RELEASE);
  providers_tail = &p->next;
}

static provider *find_provider(VALUE name) {
  TP_EACH(provider, p, providers) {
    if (p->name == name)
      return p;
  }
  return NULL;
}

VALUE tp_intern_provider(VALUE name) {
  VALUE symbol = tp_permanent_symbol(name);
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

/* ------------------------------------------------------------- one by one */

/* In strict mode and while a test captures, every call takes the slow path. */
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
 * A program must not fail because it cannot be traced. The entry exists, but
 * is never traced.
 */
bool tp_make_dead(tp_entry *entry, bool span) {
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

void tp_add_entry(tp_entry *entry) {
  set_watch(entry);
  if (provider_of(entry->provider)->disabled)
    set_disabled(entry, true);
  __atomic_store_n(entries_tail, entry, __ATOMIC_RELEASE);
  entries_tail = &entry->next;
}

/* ------------------------------------------------------------- all at once */

void tp_watch_all(void) {
  TP_EACH(tp_entry, entry, tp_entries) set_watch(entry);
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
  TP_EACH(tp_entry, entry, tp_entries) {
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

static VALUE registry_providers(VALUE self) {
  VALUE ary = rb_ary_new();

  (void)self;
  TP_EACH(provider, p, providers) rb_ary_push(ary, p->self);
  return ary;
}

void tp_init_switches(VALUE module) {
  VALUE registry = rb_const_get(module, rb_intern("Registry"));

  cProvider = tp_define_class(module, "Provider");
  rb_define_method(cProvider, "name", provider_name, 0);
  rb_define_method(cProvider, "enable", provider_enable, 0);
  rb_define_method(cProvider, "disable", provider_disable, 0);
  rb_define_method(cProvider, "enabled?", provider_enabled_p, 0);
  rb_define_singleton_method(registry, "providers", registry_providers, 0);
  rb_define_singleton_method(module, "enable", module_enable, 0);
  rb_define_singleton_method(module, "disable", module_disable, 0);
  rb_define_singleton_method(module, "toggle", module_toggle, 0);
  rb_define_singleton_method(module, "disabled?", module_disabled_p, 0);
  rb_define_singleton_method(module, "strict", module_strict, 0);
  rb_define_singleton_method(module, "strict=", module_set_strict, 1);
}
