/*
 * Probes by name, in tables that are read without a lock. One lock protects
 * changes. It is never held while a Ruby object may be allocated: a Ractor that
 * collects garbage waits for all others, so it must not wait for a Ractor that
 * waits for this lock.
 */
/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <pthread.h>
#include <ruby/encoding.h>
#include <stdlib.h>
#include <string.h>

/* Like tp_symbols. A slot is one pointer, so a single store publishes it. */
typedef struct name_table {
  size_t mask;
  size_t used;
  struct name_table *outgrown;
  tp_name_key *slots[];
} name_table;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int utf8_index, ascii_index;

/* Written with the lock held; fires read it without the lock. */
static name_table *names;
tp_symbols *tp_symbols_current;

void tp_lock(void) { pthread_mutex_lock(&lock); }

void tp_unlock(void) { pthread_mutex_unlock(&lock); }

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

/* Callable from any thread, without the lock. */
tp_entry *tp_names_get(const char *text, size_t length) {
  const name_table *table = __atomic_load_n(&names, __ATOMIC_ACQUIRE);
  uint64_t hash = name_hash(text, length);

  for (size_t i = (size_t)hash & table->mask;; i = (i + 1) & table->mask) {
    const tp_name_key *key = __atomic_load_n(&table->slots[i], __ATOMIC_ACQUIRE);

    if (!key)
      return NULL;
    if (key->hash == hash && key->length == length &&
        memcmp(key->text, text, length) == 0)
      return key->entry;
  }
}

static name_table *names_create(size_t size) {
  name_table *table = calloc(1, sizeof(*table) + size * sizeof(tp_name_key *));

  if (table)
    table->mask = size - 1;
  return table;
}

/* Call this and the following with the lock held, after tp_names_reserve. */
static void names_set(name_table *table, tp_name_key *key) {
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

tp_name_key *tp_key_create(tp_entry *entry, const char *text) {
  size_t length = strlen(text);
  tp_name_key *key = malloc(sizeof(*key) + length + 1);

  if (!key)
    return NULL;
  key->entry = entry;
  key->length = length;
  key->hash = name_hash(text, length);
  memcpy(key->text, text, length + 1);
  return key;
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

bool tp_names_reserve(size_t keys, size_t symbols) {
  return names_reserve(keys) && symbols_reserve(symbols);
}

void tp_names_set(tp_name_key *key) { names_set(names, key); }

void tp_symbols_set(VALUE symbol, tp_entry *entry) {
  symbols_set(tp_symbols_current, symbol, entry);
}

/* ------------------------------------------------------------------- lookup */

/* In UTF-16 and some other encodings, the bytes of "x" mean something else. */
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
  if (RSTRING_LEN(name) >= TP_KEY_SIZE)
    return NULL;
  entry = tp_names_get(RSTRING_PTR(name), (size_t)RSTRING_LEN(name));
  return entry && is_ascii_compatible(name) ? entry : NULL;
}

void tp_init_names(void) {
  tp_symbols_current = symbols_create(6);
  names = names_create(64);
  if (!tp_symbols_current || !names)
    rb_memerror();
  utf8_index = rb_utf8_encindex();
  ascii_index = rb_usascii_encindex();
}
