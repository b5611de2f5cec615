/*
 * Shared by all programs on probes: sites, reading of operands, tracked processes, and
 * the filter.
 *
 * A program defines before it includes this file
 *   FILTER_BASE  the slot of the filter's first operand
 * The loader sets
 *   SITE         the site's number; SITE_FROM_COOKIE: use the attachment's cookie
 *   WATCH_SET    1: only processes in `watched` count
 *   DURATIONS    one bit per slot that may hold a span's duration
 * FILTER is the only generated text: a C expression over SLOT(i) with FILTER_SLOTS
 * operands (compiled_filter.py).
 */
#include "loading.h"

#ifndef FILTER
#define FILTER 1
#define FILTER_SLOTS 0
#endif

/* Number of values that the program reads at a site. */
#define SLOTS (FILTER_BASE + FILTER_SLOTS)

/* slots.py packs these. */
struct operand {
  u8 kind; /* 0 constant, 1 register, 2 memory, 3 missing */
  u8 reg;
  u8 index; /* memory: index register + 1, 0 none */
  u8 shift; /* of the index */
  u8 size;
  u8 is_signed;
  u8 is_text;     /* see trace.c */
  u8 is_duration; /* -1 is nil here: see read_slot */
  s64 value; /* constant or displacement */
};
CHECK_SIZE(operand); CHECK(operand, kind); CHECK(operand, reg); CHECK(operand, index);
CHECK(operand, shift); CHECK(operand, size); CHECK(operand, is_signed);
CHECK(operand, is_text); CHECK(operand, is_duration); CHECK(operand, value);

struct site {
  u32 series;
  u32 role; /* see pairs.c */
  u8 bulk_first; /* slots from here on are adjacent in memory */
  u8 bulk_count;
  u8 is_off; /* its hits no longer count: the session is over */
  u8 pad[5];
  struct operand slots[MAX_SLOTS];
};
CHECK_SIZE(site); CHECK(site, series); CHECK(site, role); CHECK(site, bulk_first);
CHECK(site, bulk_count); CHECK(site, is_off); CHECK(site, slots);

static __always_inline u32 site_number(struct pt_regs *ctx) {
  u64 number = AT_LOAD(SITE);
  if (number == SITE_FROM_COOKIE)
    number = attach_cookie(ctx);
  return (u32)number;
}

static __always_inline struct site *site_of(u32 number) {
  return LOOKUP(sites, &number);
}

static __always_inline bool is_watched(void) {
  u32 tgid;
  if (!AT_LOAD(WATCH_SET))
    return true;
  tgid = bpf_get_current_pid_tgid() >> 32;
  return LOOKUP(watched, &tgid) != NULL;
}

/* Return whether a hit counts. */
static __always_inline bool is_counted(struct site *site) {
  return site && !site->is_off && is_watched();
}

/*
 * The context may only be read at constant offsets, hence the switch. Assembly keeps
 * the compiler from merging the cases into one load at a computed offset.
 */
#define REG(n, field)                                                          \
  case n: {                                                                    \
    u64 value;                                                                 \
    asm volatile("%0 = *(u64 *)(%1 + %2)"                                      \
                 : "=r"(value)                                                 \
                 : "r"(ctx), "i"(__builtin_offsetof(struct pt_regs, field)));  \
    return value;                                                              \
  }

static __always_inline u64 read_register(struct pt_regs *ctx, u8 reg) {
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
#define XREG(n) REG(n, regs[n])
  switch (reg) {
    XREG(0) XREG(1) XREG(2) XREG(3) XREG(4) XREG(5) XREG(6) XREG(7)
    XREG(8) XREG(9) XREG(10) XREG(11) XREG(12) XREG(13) XREG(14) XREG(15)
    XREG(16) XREG(17) XREG(18) XREG(19) XREG(20) XREG(21) XREG(22) XREG(23)
    XREG(24) XREG(25) XREG(26) XREG(27) XREG(28) XREG(29) XREG(30)
    REG(31, sp) REG(32, pc)
  }
#else
  switch (reg) {
    REG(14, di) REG(13, si) REG(12, dx) REG(11, cx) REG(9, r8) REG(8, r9)
    REG(19, sp) REG(10, ax) REG(5, bx) REG(4, bp) REG(7, r10) REG(6, r11)
    REG(3, r12) REG(2, r13) REG(1, r14) REG(0, r15) REG(16, ip)
  }
#endif
  return 0;
}

static __always_inline u64 resize(u64 raw, u8 size, u8 is_signed) {
  u8 shift = 64 - 8 * size;
  if (size >= 8)
    return raw;
  return is_signed ? (u64)((s64)(raw << shift) >> shift) : raw << shift >> shift;
}

/* Read an operand; return false if its memory could not be read. */
static __always_inline bool read_any_operand(struct pt_regs *ctx,
                                             const struct operand *operand,
                                             u64 *ret) {
  u8 kind = operand->kind;
  if (kind == 1) {
    *ret = resize(read_register(ctx, operand->reg), operand->size,
                  operand->is_signed);
    return true;
  }
  if (kind == 2) {
    u64 where = read_register(ctx, operand->reg) + operand->value;
    u64 raw = 0;
    if (operand->index)
      where += read_register(ctx, operand->index - 1) << (operand->shift & 7);
    if (read_user(&raw, sizeof raw, (void *)where)) {
      /* A short operand at the end of a mapping. */
      u32 size = operand->size;
      if (size > 4 || read_user(&raw, size & 7, (void *)where))
        return false;
    }
    *ret = resize(raw, operand->size, operand->is_signed);
    return true;
  }
  *ret = kind == 0 ? (u64)operand->value : 0;
  return kind == 0;
}

/* The registers for the arguments of a call. */
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
#define CALL_REGISTERS 8
#define CALL_REGISTER(i) (i)
#else
#define CALL_REGISTERS 6
#define CALL_REGISTER(i)                                                       \
  ((i) == 0 ? 14 : (i) == 1 ? 13 : (i) == 2 ? 12 : (i) == 3 ? 11               \
   : (i) == 4 ? 9 : 8)
#endif

/*
 * Read slot `i`, a constant. The gem's probes are calls, so the operand is usually the
 * complete argument of that number. One comparison detects this; otherwise, a decision
 * tree is needed for the register alone.
 */
static __always_inline bool read_operand(struct pt_regs *ctx,
                                         const struct operand *operand, int i,
                                         u64 *ret) {
  /* kind, reg, index, shift, size */
  u64 head = *(const u64 *)operand & 0xffffffffffULL;
  if (i < CALL_REGISTERS &&
      head == (1 | CALL_REGISTER(i) << 8 | 8ULL << 32)) {
    *ret = read_register(ctx, CALL_REGISTER(i));
    return true;
  }
  return read_any_operand(ctx, operand, ret);
}

#define SLOT(i) (slots[FILTER_BASE + (i)])

/* Map the bits of a double to an s64 of the same order (-0 equals 0). */
static __always_inline s64 float_key(u64 bits) {
  s64 magnitude = bits & 0x7fffffffffffffffULL;
  return (s64)bits < 0 ? -magnitude : magnitude;
}
#define FKEY(x) float_key(x)
#define IS_NAN(x) (((x) & 0x7fffffffffffffffULL) > 0x7ff0000000000000ULL)

#ifdef FILTER_STRINGS
struct text64 {
  u64 words[8];
};
CHECK_SIZE(text64);

/*
 * All comparisons of a filter share the caller's `text`: the compiler would allocate
 * one for each, and the stack has only 512 bytes.
 */
static __always_inline bool same_text(struct text64 *text, u64 pointer,
                                      u32 number, u32 prefix) {
  struct text64 *wanted = LOOKUP(strings, &number);
  u64 difference = 0;
  int length;
  if (!wanted || !pointer)
    return false;
  __builtin_memset(text, 0, sizeof *text);
  length = read_user_string(text, sizeof *text, (void *)pointer);
  if (length < 0)
    return false;
  if (prefix) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      /* Bytes beyond the prefix are NUL in the constant: mask them out. */
      u64 mask = wanted->words[i];
      mask |= (mask & 0x7f7f7f7f7f7f7f7fULL) + 0x7f7f7f7f7f7f7f7fULL;
      mask = (mask & 0x8080808080808080ULL) >> 7;
      mask = mask * 255;
      difference |= (text->words[i] ^ wanted->words[i]) & mask;
    }
  } else {
    /* A string that was cut at the buffer's end is longer than any constant. */
#pragma unroll
    for (int i = 0; i < 8; i++)
      difference |= text->words[i] ^ wanted->words[i];
    if (length == sizeof *text) {
      u8 beyond = 1;
      read_user(&beyond, 1, (void *)(pointer + sizeof *text - 1));
      if (beyond)
        return false;
    }
  }
  return difference == 0;
}
#define STREQ(i, k) same_text(&scratch, SLOT(i), k, 0)
#define STRPREFIX(i, k) same_text(&scratch, SLOT(i), k, 1)
#define FILTER_SCRATCH struct text64 scratch
#else
#define FILTER_SCRATCH
#endif

#define PID (bpf_get_current_pid_tgid() >> 32)
#define TID (bpf_get_current_pid_tgid() & 0xffffffff)

#define NIL_INTEGER 0x8000000000000000ULL

/*
 * Read slot `i`, a constant: an operand, the pid, or the tid (kinds 4 and 5). Return
 * false if it could not be read.
 */
static __always_inline bool read_slot(struct pt_regs *ctx, struct site *site,
                                      int i, u64 *ret) {
  u8 kind = site->slots[i].kind;
  *ret = 0;
  if (kind == 4)
    *ret = PID;
  else if (kind == 5)
    *ret = TID;
  else
    return read_operand(ctx, &site->slots[i], i, ret);
  return true;
}

/*
 * Replace unknown durations by nil, from slot `first` on. The gem passes -1 if the span
 * began while it was untraced; a slot's flag marks durations. This is done after all
 * slots are read, and without a branch, because the verifier checks each combination of
 * branches.
 */
static __always_inline void know_durations(struct site *site, u64 *slots,
                                           int first) {
#pragma unroll
  for (int i = first; i < SLOTS; i++) {
    if (AT_LOAD(DURATIONS) >> i & 1) {
      u64 other = slots[i] + 1; /* 0 for -1 */
      other |= -other;
      asm volatile("" : "+r"(other)); /* the compiler would make a branch of it */
      u64 unknown = (u64)site->slots[i].is_duration & ~(other >> 63);
      slots[i] ^= (slots[i] ^ NIL_INTEGER) & -unknown;
    }
  }
}

/* Read all slots in order; return false if one could not be read. */
static __always_inline bool read_slots(struct pt_regs *ctx, struct site *site,
                                       u64 *slots) {
  bool whole = true;
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    if (!read_slot(ctx, site, i, &slots[i]))
      whole = false;
  }
  know_durations(site, slots, 0);
  return whole;
}
