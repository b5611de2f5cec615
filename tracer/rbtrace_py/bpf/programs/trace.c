/*
 * Writes a record of every hit into a ring buffer, in place: another run of the program
 * can preempt it, so scratch memory cannot be shared.
 *
 * Slots before FILTER_BASE are operands of the probe; the filter's slots follow.
 * The loader sets
 *   ECHO         number of operands in a record
 *   TEXTS, TEXT  maximum number of strings, and bytes per string, with its NUL
 *   RECORD_SIZE  bytes of a record
 *   LEAST        minimum duration of a span in ns, in its first operand; 0: record all
 *   FIBERS       1: records have the fiber, and the numbers in contexts.h are set
 */
#ifndef FILTER_BASE
#define FILTER_BASE MAX_OPERANDS
#endif
#include "common.h"
#include "contexts.h"

struct event_record {
  u64 time; /* CLOCK_MONOTONIC, ns */
  u32 pid;
  u32 tid;
  u32 site;
  u16 unreadable; /* one bit per operand */
  u16 texts;      /* one bit per operand: its string was read */
  u16 cut;        /* one bit per operand: its string is longer */
  u16 pad[3];
  char comm[16];
  u64 thread, fiber; /* rb_thread_t and rb_fiber_t; 0: unknown */
  u64 values[]; /* ECHO values, followed by the strings */
};
CHECK_SIZE(event_record); CHECK(event_record, time); CHECK(event_record, pid);
CHECK(event_record, tid); CHECK(event_record, site); CHECK(event_record, unreadable);
CHECK(event_record, texts); CHECK(event_record, cut); CHECK(event_record, comm);
CHECK(event_record, thread); CHECK(event_record, fiber);

/*
 * Hide a value from the verifier. If values are known on one path and not on another,
 * older verifiers check each combination, and reject the program. A value that was
 * XORed twice with an unknown value is unknown to them.
 */
static __always_inline u64 unknown(u64 value, u64 other) {
  asm volatile("%0 ^= %1\n%0 ^= %1" : "+r"(value) : "r"(other));
  return value;
}

static __always_inline void fill_context(struct event_record *record, u64 ids) {
  u32 tgid = ids >> 32;
  struct ruby *ruby = LOOKUP(rubies, &tgid);
  u64 ec, thread = 0, fiber = 0;
  if (!ruby)
    return;
  ec = find_ec(ruby, fsbase_of(bpf_get_current_task()), ids);
  if (!ec || ec == NOT_KNOWN)
    return;
  read_user(&thread, sizeof thread, (void *)(ec + 8 * ruby->ec_thread));
  read_user(&fiber, sizeof fiber, (void *)(ec + 8 * ruby->ec_fiber));
  record->thread = thread;
  record->fiber = fiber;
}

/* Return whether a span reaches the minimum duration. */
static __always_inline bool is_long(struct pt_regs *ctx, struct site *site) {
  u64 least = AT_LOAD(LEAST), duration;
  return !least || (read_slot(ctx, site, 0, &duration) && (s64)duration >= 0 &&
                    duration >= least);
}

int on_hit(struct pt_regs *ctx) {
  u32 number = site_number(ctx);
  struct site *site = site_of(number);
  u64 slots[SLOTS + 1];
  FILTER_SCRATCH;
  u64 id = bpf_get_current_pid_tgid();
  u64 echo = AT_LOAD(ECHO), size = AT_LOAD(TEXT), texts = 0;
  u32 first;
  u64 unreadable = 0;
  u16 read = 0, cut = 0;
  struct event_record *record;
  if (!is_counted(site) || !is_long(ctx, site))
    return 0;
  /*
   * Evaluate the filter before reading the operands: rejected hits cost less, and the
   * verifier does not check the filter with every combination of unreadable operands.
   */
#pragma unroll
  for (int i = FILTER_BASE; i < SLOTS; i++) {
    if (!read_slot(ctx, site, i, &slots[i])) {
      count_one(COUNTER_UNREADABLE);
      return 0;
    }
  }
  know_durations(site, slots, FILTER_BASE);
  if (!(FILTER)) {
    count_one(COUNTER_FILTERED);
    return 0;
  }
#pragma unroll
  for (int i = 0; i < FILTER_BASE; i++) {
    u64 value = 0;
    if (i < echo &&
        (i < site->bulk_first || i >= site->bulk_first + site->bulk_count))
      if (!read_slot(ctx, site, i, &value))
        unreadable |= 1 << i;
    slots[i] = unknown(value, id);
    unreadable = unknown(unreadable, id);
  }
#if FILTER_BASE > 6
  if (echo > 6 && site->bulk_count) {
    /* Read stack operands at once: single reads would cost more than all the rest. */
    first = site->bulk_first;
    u64 bytes = site->bulk_count * 8;
    u64 where = read_register(ctx, site->slots[6].reg) + site->slots[6].value;
    if (bytes > (echo - 6) * 8)
      bytes = (echo - 6) * 8;
    if (first != 6 || read_user(&slots[6], bytes, (void *)where))
      unreadable |= 0xffc0;
  }
#endif
  record = reserve_record((void *)AT_LOAD(ring), AT_LOAD(RECORD_SIZE), 0);
  if (!record) {
    count_one(COUNTER_LOST);
    return 0;
  }
  record->time = bpf_ktime_get_ns();
  record->pid = id >> 32;
  record->tid = (u32)id;
  record->site = number;
  bpf_get_current_comm(record->comm, sizeof record->comm);
  record->thread = record->fiber = 0;
  if (AT_LOAD(FIBERS))
    fill_context(record, id);
#pragma unroll
  for (int i = 0; i < FILTER_BASE; i++)
    if (i < echo)
      record->values[i] = slots[i];
#pragma unroll
  for (int i = 0; i < FILTER_BASE; i++) {
    if (i < echo && texts < AT_LOAD(TEXTS) && site->slots[i].is_text &&
        slots[i]) {
      int length = read_user_string((char *)&record->values[echo] + texts * size,
                                    size, (void *)slots[i]);
      u8 beyond = 0;
      if (length < 0)
        unreadable |= 1 << i;
      else
        read |= 1 << i;
      if (length == size)
        read_user(&beyond, 1, (void *)(slots[i] + size - 1));
      if (beyond)
        cut |= 1 << i;
      texts++;
    }
  }
  record->unreadable = unreadable;
  record->texts = read;
  record->cut = cut;
  submit_record(record, 0);
  count_one(COUNTER_SEEN);
  return 0;
}
