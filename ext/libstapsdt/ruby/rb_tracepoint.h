/*
 * The Ruby binding: converts Ruby's values, and calls libstapsdt.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef RB_TRACEPOINT_H
#define RB_TRACEPOINT_H

#include <ruby.h>
#include <stdbool.h>
#include <stdint.h>

#include "libstapsdt.h"

#ifdef RUBY_TYPED_FROZEN_SHAREABLE
#define TP_TYPED_FLAGS                                                         \
  (RUBY_TYPED_FREE_IMMEDIATELY | RUBY_TYPED_WB_PROTECTED |                     \
   RUBY_TYPED_FROZEN_SHAREABLE)
#else
#define TP_TYPED_FLAGS (RUBY_TYPED_FREE_IMMEDIATELY | RUBY_TYPED_WB_PROTECTED)
#endif

#define TP_COLD __attribute__((cold, noinline))
#define TP_LIKELY(x) __builtin_expect(!!(x), 1)
#define TP_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Never equal to a number of arguments, which is at most SDT_MAX_OPERANDS. */
#define TP_NO_ARITY 0xff

/*
 * Data of a Tracepoint::Probe or a Tracepoint::Span. Once in the registry, it
 * lives as long as the process, so readers need no lock.
 */
typedef struct tp_entry {
  sdt_probe *probe; /* of an event, or of the beginning of a span */
  sdt_probe *end;   /* of the end of a span; NULL for an event */
  /*
   * Number of arguments of the calls that this entry accepts, or TP_NO_ARITY.
   * A single comparison on the fast path therefore checks both the kind of
   * entry (event or span) and the number of arguments.
   */
  uint8_t fire_arity;
  uint8_t span_arity;
  uint8_t count;   /* number of the caller's arguments */
  uint8_t results; /* of a span: number of values that its block may set */
  /* sdt_type of the arguments, then of the results; SDT_OPEN may change once */
  uint8_t types[SDT_MAX_OPERANDS];
  bool dead; /* the image could not be created: probe and end are our own */
  bool undeclared;  /* created by its first fire or span, not by define */
  uint8_t keywords; /* number of arguments with names, at the end */
  VALUE self;
  VALUE provider; /* Tracepoint::Provider */
  VALUE name;     /* Symbol */
  VALUE labels;   /* frozen Array of Symbols: names, in the order of types */
  VALUE untraced; /* of a span: the measurement shared by all untraced calls */
  struct tp_entry *next;
} tp_entry;

/* --------------------------------------------------------------- rb_entry.c */

extern const rb_data_type_t tp_entry_type;

static inline tp_entry *tp_entry_of(VALUE self) {
  /*
   * No type check is needed: these classes have no allocator, their objects
   * cannot be copied or unmarshalled, and Ruby binds their methods to their
   * instances only.
   */
  return (tp_entry *)RTYPEDDATA_DATA(self);
}

/* Set which calls take the fast path. Call again when a type is learned. */
void tp_set_arity(tp_entry *entry, bool span);
NORETURN(void tp_raise_arity(const tp_entry *entry, int given));
/* Define a class whose objects only this extension creates. */
VALUE tp_define_class(VALUE module, const char *name);
/* Return the Symbol of a name, which is never freed or moved. */
VALUE tp_permanent_symbol(VALUE name);
void tp_init_entry(VALUE module);

/* --------------------------------------------------------------- rb_names.c */

/* Size of "provider:name" with its NUL. */
#define TP_KEY_SIZE (2 * SDT_MAX_NAME + 2)

/* The key of an entry: "provider:name", or "name". Never freed. */
typedef struct tp_name_key {
  tp_entry *entry;
  uint64_t hash;
  size_t length;
  char text[];
} tp_name_key;

typedef struct tp_slot {
  VALUE key;
  tp_entry *entry;
} tp_slot;

/*
 * Names as Symbols: :"provider:name", and :name for the default provider.
 * Readers take no lock. A slot's key is published after its entry, and a larger
 * table after it is filled. An outgrown table is kept, since it may still be
 * in use.
 */
typedef struct tp_symbols {
  unsigned shift;
  size_t mask;
  size_t used;
  struct tp_symbols *outgrown;
  tp_slot slots[];
} tp_symbols;

extern tp_symbols *tp_symbols_current;
/* The lock of all tables and lists: held over forks, not while calling Ruby. */
void tp_lock(void);
void tp_unlock(void);
/* Find by "name" or "provider:name", a String or Symbol. Takes no lock. */
tp_entry *tp_find(VALUE name);
tp_entry *tp_names_get(const char *text, size_t length);
/* Return NULL if out of memory. */
tp_name_key *tp_key_create(tp_entry *entry, const char *text);
/* Call with the lock held: make room, then fill it. */
bool tp_names_reserve(size_t keys, size_t symbols);
void tp_names_set(tp_name_key *key);
void tp_symbols_set(VALUE symbol, tp_entry *entry);
void tp_init_names(void);

static inline size_t tp_symbol_hash(const tp_symbols *table, VALUE symbol) {
  return (size_t)(((uint64_t)symbol * UINT64_C(0x9e3779b97f4a7c15)) >>
                  table->shift);
}

/*
 * Look up any VALUE. Keys are Symbols that are never freed or moved, so no
 * other object can have the same bits.
 */
static inline tp_entry *tp_find_symbol(VALUE symbol) {
  const tp_symbols *table =
      __atomic_load_n(&tp_symbols_current, __ATOMIC_ACQUIRE);
  size_t i = tp_symbol_hash(table, symbol);

  for (;; i = (i + 1) & table->mask) {
    const tp_slot *slot = &table->slots[i];
    VALUE key = __atomic_load_n(&slot->key, __ATOMIC_ACQUIRE);

    if (!key)
      return NULL;
    if (key == symbol)
      return slot->entry;
  }
}

/* ------------------------------------------------------------ rb_switches.c */

/* Callable from any thread, without the lock. */
#define TP_EACH(type, it, head)                                                \
  for (type *it = __atomic_load_n(&(head), __ATOMIC_ACQUIRE); it;              \
       it = __atomic_load_n(&it->next, __ATOMIC_ACQUIRE))

extern tp_entry *tp_entries;
extern bool tp_strict;
/*
 * Tracepoint.disable: no probe counts as traced. A signal handler may set this,
 * so it is a plain flag. The slow path reads it; untraced fires do not.
 */
extern bool tp_off;

/* Number of running captures (tracepoint/testing); changed under the lock. */
extern unsigned tp_captures;
static inline bool tp_capturing(void) {
  return __atomic_load_n(&tp_captures, __ATOMIC_RELAXED) != 0;
}
/* Return the permanent provider of that name. */
VALUE tp_intern_provider(VALUE name);
/* Call with the lock held: list an entry, and set the address it watches. */
void tp_add_entry(tp_entry *entry);
/* Call with the lock held: update the addresses that all entries watch. */
void tp_watch_all(void);
/* Give an entry its own probe without a site; return false if out of memory. */
bool tp_make_dead(tp_entry *entry, bool span);
void tp_init_switches(VALUE module);

/* ------------------------------------------------------------ rb_registry.c */

void tp_init_registry(VALUE module);

/* -------------------------------------------------------------- rb_values.c */

typedef enum tp_counter {
  TP_CONVERTED,
  TP_DROPPED,
  TP_FAILED,
  TP_OVER_LIMIT,
  TP_COUNTERS,
} tp_counter;

void tp_count(tp_counter counter);

/* Maximum length copied from a String without a NUL at its end. */
#define TP_COPY_MAX 4096

typedef enum tp_fit {
  TP_FITS,
  TP_WRONG_CLASS,
  TP_OUT_OF_RANGE,
  TP_HAS_NUL,
  TP_UNTERMINATED, /* usable only as a copy of `length` bytes */
} tp_fit;

typedef struct tp_text {
  const char *start;
  size_t length;
} tp_text;

/*
 * Convert a value to an operand, by the rules of ruby/lib/tracepoint.rb.
 * Creates no object and calls no Ruby code.
 */
tp_fit tp_convert(VALUE value, sdt_type type, bool whole, uint64_t *ret,
                  tp_text *text);
/* Raise strict mode's error. */
NORETURN(void tp_raise_unfit(const tp_entry *entry, int index, VALUE value,
                             tp_fit fit));
/* In strict mode: raise unless the value fits. */
void tp_check_fit(const tp_entry *entry, int index, VALUE value);
void tp_init_values(VALUE module);

/* ---------------------------------------------------------- rb_undeclared.c */

/*
 * Return the entry that the first use of a name creates, or NULL if it creates
 * none. argv begins with the name. Raises in strict mode only.
 */
tp_entry *tp_declare(VALUE module, VALUE kind, int argc, const VALUE *argv);
/*
 * Arrange the arguments of a call in the order of the entry's operands.
 * Keywords may come in any order. Returns false if the arguments do not match.
 */
bool tp_arrange(const tp_entry *entry, int argc, const VALUE *argv,
                VALUE *ret);
/* Learn open types from the values, one per operand. */
void tp_learn(tp_entry *entry, const VALUE *values);
/* Replace each value of a string operand that is not a String by its to_s. */
void tp_stringify(const tp_entry *entry, VALUE *values);
/* Number and limit of undeclared probes; the lock protects the number. */
extern size_t tp_undeclared, tp_undeclared_limit;
bool tp_below_limit(void);
/* Count a fire or span without an event; raise in strict mode. */
void tp_drop(const tp_entry *entry, int given);
void tp_warn_dead(const tp_entry *entry, const char *message);
void tp_init_undeclared(VALUE module);

/* ---------------------------------------------------------------- rb_fire.c */

/*
 * Convert the first `count` of the entry's arguments and results, store them
 * after the `lead` operands that `operands` already contains, and call the
 * site. Returns whether it was traced.
 */
bool tp_fire(const tp_entry *entry, const sdt_probe *probe, const VALUE *argv,
             int count, uint64_t *operands, int lead, bool strict);
void tp_init_fire(VALUE module);

/* ---------------------------------------------------------------- rb_span.c */

/* Return the measurement that all untraced calls of the span share. */
VALUE tp_untraced_measurement(tp_entry *span);
void tp_init_span(VALUE module);

/* ------------------------------------------------------------- rb_capture.c */

/* Store an event with the operands of tp_fire. */
void tp_capture(const tp_entry *entry, const uint64_t *operands, int lead,
                int count);
/* Call with the lock held, in a child: only its parent captures. */
void tp_forget_captures(void);
void tp_init_capture(VALUE module);

/* Return whether a tracer or capture sees the probe's events (slow path). */
static inline bool tp_traced(const sdt_probe *probe) {
  return !__atomic_load_n(&tp_off, __ATOMIC_RELAXED) &&
         (sdt_traced(probe) || (TP_UNLIKELY(tp_capturing()) && !probe->disabled));
}

/* -------------------------------------------------------------- rb_method.c */

void tp_init_method(VALUE module);

#endif
