/*
 * Children join: a process made by a watched one is watched from before its
 * first instruction (sched_process_fork comes before it may run) to its end.
 * A value of 0 in `watched` stands for a process that was named by the user.
 *
 *   PID_OFFSET, TGID_OFFSET  in struct task_struct, from BTF
 */
#include <uapi/linux/ptrace.h>

BPF_TABLE("hash", u32, u32, watched, 1);
BPF_TABLE("array", u32, u64, counters, 1);

/* A child that is gone before anyone looked must not count under a new owner. */
int on_exit(struct bpf_raw_tracepoint_args *ctx) {
  u64 id = bpf_get_current_pid_tgid();
  u32 tgid = id >> 32;
  u32 *parent;
  if (tgid != (u32)id)
    return 0;
  parent = watched.lookup(&tgid);
  if (parent && *parent)
    watched.delete(&tgid);
  return 0;
}

int on_fork(struct bpf_raw_tracepoint_args *ctx) {
  u64 child = ctx->args[1];
  u32 parent = bpf_get_current_pid_tgid() >> 32;
  u32 pid = 0, tgid = 0, place = COUNTER_NO_ROOM;
  u64 *cell;
  if (!watched.lookup(&parent))
    return 0;
  bpf_probe_read_kernel(&pid, sizeof pid, (void *)(child + PID_OFFSET));
  bpf_probe_read_kernel(&tgid, sizeof tgid, (void *)(child + TGID_OFFSET));
  if (pid != tgid) /* a thread */
    return 0;
  if (watched.update(&pid, &parent)) {
    cell = counters.lookup(&place);
    if (cell)
      __sync_fetch_and_add(cell, 1);
  }
  return 0;
}
