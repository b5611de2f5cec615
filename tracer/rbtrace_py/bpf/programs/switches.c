/*
 * Writes a record when a thread of a watched process gets a CPU, leaves it, or is
 * woken. This runs at every switch of the whole machine, so other threads cost only one
 * lookup in `watched`, and the idle task none.
 *
 * The loader sets the numbers in tasks.h, and
 *   THREAD_PID_OFFSET, RAN_OFFSET
 *                in struct task_struct, from BTF
 *   LEVEL_OFFSET, NUMBERS_OFFSET, NUMBER_SIZE
 *                in struct pid, and the size of a struct upid, which begins with the id
 */
#include "loading.h"
#include "tasks.h"

#define WOKEN 2
#define ON 3
#define OFF 4

struct switch_record {
  u64 time; /* CLOCK_MONOTONIC, ns */
  u64 ran;  /* for OFF: ns on CPUs so far, by the scheduler's clock */
  u32 pid;
  u32 tid;
  u32 own;   /* tid in the thread's own namespace; 0 after it is released */
  u32 state; /* the kernel's bits; 0: runnable */
  u32 lost;  /* number of records without room so far */
  u16 what;
  u16 cpu;
};
CHECK_SIZE(switch_record); CHECK(switch_record, time); CHECK(switch_record, ran);
CHECK(switch_record, pid); CHECK(switch_record, tid); CHECK(switch_record, own);
CHECK(switch_record, state); CHECK(switch_record, lost); CHECK(switch_record, what);
CHECK(switch_record, cpu);

static __always_inline u32 own_tid(u64 task) {
  u64 pid = 0;
  u32 level = 0, tid = 0;
  read_kernel(&pid, sizeof pid, (void *)(task + AT_LOAD(THREAD_PID_OFFSET)));
  if (!pid)
    return 0;
  read_kernel(&level, sizeof level, (void *)(pid + AT_LOAD(LEVEL_OFFSET)));
  pid += AT_LOAD(NUMBERS_OFFSET) + (u64)level * AT_LOAD(NUMBER_SIZE);
  read_kernel(&tid, sizeof tid, (void *)pid);
  return tid;
}

static __always_inline void tell(u64 task, u64 ids, u16 what, u32 state) {
  u32 place = COUNTER_LOST;
  u64 *lost = LOOKUP(counters, &place);
  struct switch_record *record;
  if (!lost)
    return;
  record = reserve_record((void *)AT_LOAD(ring), sizeof(struct switch_record), 0);
  if (!record) {
    __sync_fetch_and_add(lost, 1);
    return;
  }
  record->time = bpf_ktime_get_ns();
  record->ran = 0;
  if (what == OFF)
    read_kernel(&record->ran, sizeof record->ran,
                          (void *)(task + AT_LOAD(RAN_OFFSET)));
  record->pid = ids >> 32;
  record->tid = (u32)ids;
  record->own = own_tid(task);
  record->state = state;
  record->lost = (u32)*lost;
  record->what = what;
  record->cpu = bpf_get_smp_processor_id();
  submit_record(record, NO_WAKEUP);
}

static __always_inline bool is_watched(u64 ids) {
  u32 tgid = ids >> 32;
  return tgid && LOOKUP(watched, &tgid);
}

/* args: preempt, prev, next, and since 5.19 prev's state; prev is still current. */
int on_switch(struct bpf_raw_tracepoint_args *ctx) {
  u64 leaving = bpf_get_current_pid_tgid();
  u64 coming = ids_of(ctx->args[2]);
  if (is_watched(leaving))
    tell(ctx->args[1], leaving, OFF, leaving_state(ctx));
  if (is_watched(coming))
    tell(ctx->args[2], coming, ON, 0);
  return 0;
}

int on_wakeup(struct bpf_raw_tracepoint_args *ctx) {
  u64 ids = ids_of(ctx->args[0]);
  if (is_watched(ids))
    tell(ctx->args[0], ids, WOKEN, 0);
  return 0;
}
