/*
 * Every hit as a record in a ring buffer, written in place: a program can be
 * preempted by another run of itself, so there is no scratch memory to share.
 *
 *   TEXTS  strings a record has room for
 * Slots before FILTER_BASE are operands of the probe; those after it are the
 * filter's.
 */
#include "common.h"

struct record {
  u64 time; /* CLOCK_MONOTONIC, ns */
  u32 pid;
  u32 tid;
  u32 site;
  u16 unreadable; /* a bit an operand */
  u16 texts;      /* a bit an operand: its text was read */
  u16 cut;        /* a bit an operand: its text goes on */
  u16 pad[3];
  char comm[16];
  u64 values[FILTER_BASE + 1];
  char text[TEXTS + 1][TEXT];
};

BPF_RINGBUF_OUTPUT(ring, 1);

int on_hit(struct pt_regs *ctx) {
  u32 number = site_number(ctx);
  struct site *site = sites.lookup(&number);
  u64 slots[SLOTS + 1];
  FILTER_SCRATCH;
  u64 id = bpf_get_current_pid_tgid();
  u32 first, texts = 0;
  u16 unreadable = 0, read = 0, cut = 0;
  struct record *record;
  if (!is_counted(site))
    return 0;
  /*
   * The filter before the operands: what does not pass costs less, and the
   * verifier does not try the filter with every combination of operands that
   * cannot be read.
   */
#pragma unroll
  for (int i = FILTER_BASE; i < SLOTS; i++) {
    if (!read_slot(ctx, site, i, &slots[i])) {
      count_one(COUNTER_UNREADABLE);
      return 0;
    }
  }
  know_durations(site, slots);
  if (!(FILTER)) {
    count_one(COUNTER_FILTERED);
    return 0;
  }
#pragma unroll
  for (int i = 0; i < FILTER_BASE; i++) {
    slots[i] = 0;
    if (i < site->bulk_first || i >= site->bulk_first + site->bulk_count)
      if (!read_slot(ctx, site, i, &slots[i]))
        unreadable |= 1 << i;
  }
#if FILTER_BASE > 6
  if (site->bulk_count) {
    /* Stack operands in one read: a read each costs more than all the rest. */
    first = site->bulk_first;
    u64 size = site->bulk_count * 8;
    u64 where = read_register(ctx, site->slots[6].reg) + site->slots[6].value;
    if (size > (FILTER_BASE - 6) * 8)
      size = (FILTER_BASE - 6) * 8;
    if (first != 6 || bpf_probe_read_user(&slots[6], size, (void *)where))
      unreadable |= 0xffc0;
  }
#endif
  record = ring.ringbuf_reserve(sizeof(struct record));
  if (!record) {
    count_one(COUNTER_LOST);
    return 0;
  }
  record->time = bpf_ktime_get_ns();
  record->pid = id >> 32;
  record->tid = (u32)id;
  record->site = number;
  bpf_get_current_comm(record->comm, sizeof record->comm);
#pragma unroll
  for (int i = 0; i < FILTER_BASE; i++)
    record->values[i] = slots[i];
#if TEXTS
#pragma unroll
  for (int i = 0; i < FILTER_BASE; i++) {
    if (site->slots[i].is_text && slots[i] && texts < TEXTS) {
      int length = bpf_probe_read_user_str(record->text[texts], TEXT,
                                           (void *)slots[i]);
      u8 beyond = 0;
      if (length < 0)
        unreadable |= 1 << i;
      else
        read |= 1 << i;
      if (length == TEXT)
        bpf_probe_read_user(&beyond, 1, (void *)(slots[i] + TEXT - 1));
      if (beyond)
        cut |= 1 << i;
      texts++;
    }
  }
#endif
  record->unreadable = unreadable;
  record->texts = read;
  record->cut = cut;
  ring.ringbuf_submit(record, 0);
  count_one(COUNTER_SEEN);
  return 0;
}
