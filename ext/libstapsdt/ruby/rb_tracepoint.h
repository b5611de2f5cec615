/*
 * The binding: Ruby's values in, calls of libstapsdt out.
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
 * The data that a Tracepoint::Probe or a Tracepoint::Span wraps. Once it is in the
 * registry it lives as long as the process, so no reader ever takes a lock.
 */
typedef struct tp_entry {
  sdt_probe *probe; /* an event's, or the one a span begins with */
  sdt_probe *end;   /* a span's second one; NULL for an event */
  /*
   * The number of arguments of the calls this entry answers to, or
   * TP_NO_ARITY: one compare on the fast path stands for "is it an event (a
   * span)" and "is the number right".
   */
  uint8_t fire_arity;
  uint8_t span_arity;
  uint8_t count;   /* of the caller's arguments */
  uint8_t results; /* of a span: values that its block may set */
  /* sdt_type of the arguments, then of the results; SDT_OPEN ones change once */
  uint8_t types[SDT_MAX_OPERANDS];
  bool dead; /* the image could not be made: probe and end are ours */
  bool undeclared;  /* made by its first fire or span, not by define */
  uint8_t keywords; /* how many of its arguments, the last ones, have names */
  VALUE self;
  VALUE provider; /* Tracepoint::Provider */
  VALUE name;     /* Symbol */
  VALUE labels;   /* frozen Array of Symbols: names, in the order of types */
  VALUE untraced; /* of a span: the measurement that all untraced calls share */
  struct tp_entry *next;
} tp_entry;

/* --------------------------------------------------------------- rb_entry.c */

extern const rb_data_type_t tp_entry_type;

static inline tp_entry *tp_entry_of(VALUE self) {
  /*
   * No type check: these classes have no allocator, cannot be copied or
   * unmarshalled, and Ruby binds their methods to their instances only.
   */
  return (tp_entry *)RTYPEDDATA_DATA(self);
}

/* Which calls go the quick way; anew whenever a type of it was learned. */
void tp_set_arity(tp_entry *entry, bool span);
NORETURN(void tp_raise_arity(const tp_entry *entry, int given));
/* A class whose objects only this extension makes. */
VALUE tp_define_class(VALUE module, const char *name);
/* The one VALUE of a name, which is never freed and never moves. */
VALUE tp_permanent_symbol(VALUE name);
void tp_init_entry(VALUE module);

/* --------------------------------------------------------------- rb_names.c */

/* "provider:name" and its NUL. */
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
 * The names as Symbols, :"provider:name", and of the default provider :name.
 * Readers take no lock: a slot's key is published after its entry, a bigger table
 * after it is filled, and a table that was outgrown is kept, as someone may still be
 * reading it.
 */
typedef struct tp_symbols {
  unsigned shift;
  size_t mask;
  size_t used;
  struct tp_symbols *outgrown;
  tp_slot slots[];
} tp_symbols;

extern tp_symbols *tp_symbols_current;
/* The lock of all tables and lists: held for no call of Ruby's, and over a fork. */
void tp_lock(void);
void tp_unlock(void);
/* By "name" or "provider:name", a String or a Symbol; takes no lock. */
tp_entry *tp_find(VALUE name);
tp_entry *tp_names_get(const char *text, size_t length);
/* NULL for want of memory. */
tp_name_key *tp_key_create(tp_entry *entry, const char *text);
/* Holding the lock: make room, and fill it. */
bool tp_names_reserve(size_t keys, size_t symbols);
void tp_names_set(tp_name_key *key);
void tp_symbols_set(VALUE symbol, tp_entry *entry);
void tp_init_names(void);

static inline size_t tp_symbol_hash(const tp_symbols *table, VALUE symbol) {
  return (size_t)(((uint64_t)symbol * UINT64_C(0x9e3779b97f4a7c15)) >>
                  table->shift);
}

/*
 * Any VALUE may be asked for: a key is a symbol that is never freed or moved,
 * so nothing else can have its bits.
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

/* Any thread, without the lock. */
#define TP_EACH(type, it, head)                                                \
  for (type *it = __atomic_load_n(&(head), __ATOMIC_ACQUIRE); it;              \
       it = __atomic_load_n(&it->next, __ATOMIC_ACQUIRE))

extern tp_entry *tp_entries;
extern bool tp_strict;
/*
 * Tracepoint.disable: no probe reads as traced. A signal's handler flips it, so
 * it is a flag and nothing else: the slow path looks at it, and an untraced fire
 * does not.
 */
extern bool tp_off;

/* Captures that run (tracepoint/testing); changes under the lock. */
extern unsigned tp_captures;
static inline bool tp_capturing(void) {
  return __atomic_load_n(&tp_captures, __ATOMIC_RELAXED) != 0;
}
/* The provider of that name, which lasts. */
VALUE tp_intern_provider(VALUE name);
/* Holding the lock: have the entry in the list, and watch what it has to. */
void tp_add_entry(tp_entry *entry);
/* Set anew what all entries watch, holding the lock. */
void tp_watch_all(void);
/* Give the entry a probe of its own without a site; false for want of memory. */
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

/* Longest part of a String that is copied, where it has no NUL at its end. */
#define TP_COPY_MAX 4096

typedef enum tp_fit {
  TP_FITS,
  TP_WRONG_CLASS,
  TP_OUT_OF_RANGE,
  TP_HAS_NUL,
  TP_UNTERMINATED, /* the pointer is good only for a copy of `length` bytes */
} tp_fit;

typedef struct tp_text {
  const char *start;
  size_t length;
} tp_text;

/*
 * Turn a value into an operand, by the rules of ruby/lib/tracepoint.rb. Makes
 * no object and calls no Ruby code.
 */
tp_fit tp_convert(VALUE value, sdt_type type, bool whole, uint64_t *ret,
                  tp_text *text);
/* Raise what strict mode raises. */
NORETURN(void tp_raise_unfit(const tp_entry *entry, int index, VALUE value,
                             tp_fit fit));
/* In strict mode: raise unless the value fits. */
void tp_check_fit(const tp_entry *entry, int index, VALUE value);
void tp_init_values(VALUE module);

/* ---------------------------------------------------------- rb_undeclared.c */

/*
 * The entry that the first use of a name makes, or NULL where it makes none.
 * argv begins with the name. Raises in strict mode only.
 */
tp_entry *tp_declare(VALUE module, VALUE kind, int argc, const VALUE *argv);
/*
 * Put the arguments of a call into the order of the entry's operands; keywords
 * may come in any. Returns false if there are others than it has.
 */
bool tp_arrange(const tp_entry *entry, int argc, const VALUE *argv,
                VALUE *ret);
/* Learn the types that were open from the values, one for each operand. */
void tp_learn(tp_entry *entry, const VALUE *values);
/* Replace each value of a text operand that is no text by what to_s gives. */
void tp_stringify(const tp_entry *entry, VALUE *values);
/* Undeclared probes there are, and may be; the first changes under the lock. */
extern size_t tp_undeclared, tp_undeclared_limit;
bool tp_below_limit(void);
/* Count a fire or span that makes no event; in strict mode raise. */
void tp_drop(const tp_entry *entry, int given);
void tp_warn_dead(const tp_entry *entry, const char *message);
void tp_init_undeclared(VALUE module);

/* ---------------------------------------------------------------- rb_fire.c */

/*
 * Convert the first `count` of the entry's arguments and results behind the
 * `lead` operands that stand in `operands` already, and call the site. Returns
 * whether it was traced.
 */
bool tp_fire(const tp_entry *entry, const sdt_probe *probe, const VALUE *argv,
             int count, uint64_t *operands, int lead, bool strict);
void tp_init_fire(VALUE module);

/* ---------------------------------------------------------------- rb_span.c */

/* The entry's shared measurement. */
VALUE tp_untraced_measurement(tp_entry *span);
void tp_init_span(VALUE module);

/* ------------------------------------------------------------- rb_capture.c */

/* Keep an event, whose operands are those of tp_fire. */
void tp_capture(const tp_entry *entry, const uint64_t *operands, int lead,
                int count);
/* In a child, holding the lock: its parent captures, and it does not. */
void tp_forget_captures(void);
void tp_init_capture(VALUE module);

/* Does someone see the probe's events? For the slow path. */
static inline bool tp_traced(const sdt_probe *probe) {
  return !__atomic_load_n(&tp_off, __ATOMIC_RELAXED) &&
         (sdt_traced(probe) || (TP_UNLIKELY(tp_capturing()) && !probe->disabled));
}

/* -------------------------------------------------------------- rb_method.c */

void tp_init_method(VALUE module);

#endif
