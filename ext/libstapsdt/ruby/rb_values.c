/* SPDX-License-Identifier: MIT */
#include "rb_tracepoint.h"

#include <math.h>
#include <string.h>

/*
 * Maximum length searched for a NUL in a String, except in strict mode, which
 * searches all of it. No tracer reads that much, and the time of a fire must
 * not depend on the size of the program's data.
 */
#define TP_SEARCH_MAX 65536

static uint64_t counters[TP_COUNTERS];

void tp_count(tp_counter counter) {
  __atomic_fetch_add(&counters[counter], 1, __ATOMIC_RELAXED);
}

static uint64_t float_bits(double number) {
  uint64_t bits;

  memcpy(&bits, &number, sizeof(bits));
  if (bits == SDT_NIL_FLOAT)
    bits = UINT64_C(0x7ff8000000000000); /* an ordinary NaN is not nil */
  return bits;
}

static tp_fit saturated(bool negative, uint64_t *ret) {
  *ret = negative ? (uint64_t)(INT64_MIN + 1) : (uint64_t)INT64_MAX;
  return TP_OUT_OF_RANGE;
}

static tp_fit integer_from_bignum(VALUE value, uint64_t *ret) {
  uint64_t word = 0;
  int sign = rb_integer_pack(value, &word, 1, sizeof(word), 0,
                             INTEGER_PACK_NATIVE_BYTE_ORDER |
                                 INTEGER_PACK_MSWORD_FIRST | INTEGER_PACK_2COMP);
  bool negative = sign < 0;

  if (sign == 2 || sign == -2 || ((int64_t)word < 0) != negative ||
      word == (uint64_t)SDT_NIL_INTEGER)
    return saturated(negative, ret);
  *ret = word;
  return TP_FITS;
}

static tp_fit integer_from_float(double number, uint64_t *ret) {
  if (isnan(number))
    *ret = (uint64_t)SDT_NIL_INTEGER;
  else if (number >= 0x1p63 || number <= -0x1p63)
    saturated(number < 0, ret);
  else
    *ret = (uint64_t)(int64_t)number;
  return TP_WRONG_CLASS;
}

static tp_fit to_integer(VALUE value, uint64_t *ret) {
  if (TP_LIKELY(FIXNUM_P(value))) {
    *ret = (uint64_t)(int64_t)FIX2LONG(value);
    return TP_FITS;
  }
  if (RB_TYPE_P(value, T_BIGNUM))
    return integer_from_bignum(value, ret);
  if (RB_FLOAT_TYPE_P(value))
    return integer_from_float(RFLOAT_VALUE(value), ret);
  *ret = (uint64_t)SDT_NIL_INTEGER;
  if (NIL_P(value))
    return TP_FITS;
  if (value == Qtrue || value == Qfalse)
    *ret = value == Qtrue;
  return TP_WRONG_CLASS;
}

static tp_fit float_from_bignum(VALUE value, uint64_t *ret) {
  /* rb_big2dbl would warn, which runs Ruby code. */
  if (rb_absint_numwords(value, 1, NULL) > 1024)
    *ret = float_bits(rb_big_cmp(value, INT2FIX(0)) == INT2FIX(-1) ? -INFINITY
                                                                   : INFINITY);
  else
    *ret = float_bits(rb_big2dbl(value));
  return TP_OUT_OF_RANGE;
}

static tp_fit to_float(VALUE value, uint64_t *ret) {
  if (TP_LIKELY(RB_FLOAT_TYPE_P(value))) {
    *ret = float_bits(RFLOAT_VALUE(value));
    return TP_FITS;
  }
  if (FIXNUM_P(value)) {
    long number = FIX2LONG(value);

    *ret = float_bits((double)number);
    return number >= -(1L << 53) && number <= 1L << 53 ? TP_FITS
                                                       : TP_OUT_OF_RANGE;
  }
  if (RB_TYPE_P(value, T_BIGNUM))
    return float_from_bignum(value, ret);
  *ret = SDT_NIL_FLOAT;
  return NIL_P(value) ? TP_FITS : TP_WRONG_CLASS;
}

static tp_fit to_text(VALUE value, bool whole, uint64_t *ret, tp_text *text) {
  size_t length, searched;
  const char *start, *nul;

  *ret = 0;
  if (NIL_P(value))
    return TP_FITS;
  if (SYMBOL_P(value))
    value = rb_sym2str(value);
  else if (!RB_TYPE_P(value, T_STRING))
    return TP_WRONG_CLASS;

  start = RSTRING_PTR(value);
  length = (size_t)RSTRING_LEN(value);
  *ret = (uint64_t)(uintptr_t)start;
  searched = whole || length < TP_SEARCH_MAX ? length : TP_SEARCH_MAX;
  nul = memchr(start, 0, searched);
  if (nul)
    return TP_HAS_NUL; /* every reader stops there */
  if (TP_LIKELY(start[length] == 0))
    return TP_FITS;
  text->start = start;
  text->length = length;
  return TP_UNTERMINATED;
}

static tp_fit to_bool(VALUE value, uint64_t *ret) {
  if (value == Qtrue || value == Qfalse) {
    *ret = value == Qtrue;
    return TP_FITS;
  }
  *ret = SDT_NIL_BOOL;
  return NIL_P(value) ? TP_FITS : TP_WRONG_CLASS;
}

tp_fit tp_convert(VALUE value, sdt_type type, bool whole, uint64_t *ret,
                  tp_text *text) {
  switch (type) {
  case SDT_INTEGER:
    return to_integer(value, ret);
  case SDT_FLOAT:
    return to_float(value, ret);
  case SDT_BOOL:
    return to_bool(value, ret);
  case SDT_OPEN: /* only nil so far, which has the bits of an Integer's nil */
    *ret = (uint64_t)SDT_NIL_INTEGER;
    return NIL_P(value) ? TP_FITS : TP_WRONG_CLASS;
  case SDT_STRING:
  case SDT_SYMBOL:
    break;
  }
  return to_text(value, whole, ret, text);
}

static const char *type_name(sdt_type type) {
  switch (type) {
  case SDT_INTEGER:
    return "Integer";
  case SDT_STRING:
    return "String";
  case SDT_SYMBOL:
    return "Symbol";
  case SDT_FLOAT:
    return "Float";
  case SDT_OPEN:
    return "nil";
  case SDT_BOOL:
    break;
  }
  return "bool";
}

void tp_raise_unfit(const tp_entry *entry, int index, VALUE value, tp_fit fit) {
  const char *type = type_name((sdt_type)entry->types[index]);
  VALUE key = rb_ary_entry(entry->labels, index);

  if (fit == TP_OUT_OF_RANGE)
    rb_raise(rb_eRangeError, "%" PRIsVALUE ": %" PRIsVALUE " does not fit %s",
             entry->self, key, type);
  if (fit == TP_HAS_NUL)
    rb_raise(rb_eArgError, "%" PRIsVALUE ": %" PRIsVALUE " contains a NUL",
             entry->self, key);
  rb_raise(rb_eTypeError,
           "%" PRIsVALUE ": %" PRIsVALUE " must be %s, not %" PRIsVALUE,
           entry->self, key, type, rb_obj_class(value));
}

void tp_check_fit(const tp_entry *entry, int index, VALUE value) {
  uint64_t operand;
  tp_text text;
  tp_fit fit = tp_convert(value, (sdt_type)entry->types[index], true, &operand,
                          &text);

  if (fit != TP_FITS && fit != TP_UNTERMINATED)
    tp_raise_unfit(entry, index, value, fit);
}

static VALUE stats_counters(VALUE self) {
  VALUE hash = rb_hash_new();
  static const char *const names[TP_COUNTERS] = {
      [TP_CONVERTED] = "converted",
      [TP_DROPPED] = "dropped",
      [TP_FAILED] = "failed",
      [TP_OVER_LIMIT] = "over_limit",
  };

  (void)self;
  for (int i = 0; i < TP_COUNTERS; i++)
    rb_hash_aset(hash, ID2SYM(rb_intern(names[i])),
                 ULL2NUM(__atomic_load_n(&counters[i], __ATOMIC_RELAXED)));
  return hash;
}

void tp_init_values(VALUE module) {
  VALUE registry = rb_const_get(module, rb_intern("Registry"));

  rb_define_singleton_method(registry, "counters", stats_counters, 0);
}
