/*
 * Adds children: a child of a watched process is watched from before its first
 * instruction (sched_process_fork fires before it can run) until its end. In `watched`,
 * the value 0 marks a process that the user named.
 *
 *   PID_OFFSET, TGID_OFFSET  set by the loader: in struct task_struct, from BTF
 */
#include "loading.h"

/* Remove an exited child, because another process may reuse its pid. */
int on_exit(struct bpf_raw_tracepoint_args *ctx) {
  u64 id = bpf_get_current_pid_tgid();
  u32 tgid = id >> 32;
  u32 *parent;
  if (tgid != (u32)id)
    return 0;
  parent = LOOKUP(watched, &tgid);
  if (parent && *parent)
    DELETE(watched, &tgid);
  return 0;
}

int on_fork(struct bpf_raw_tracepoint_args *ctx) {
  u64 child = ctx->args[1];
  u32 parent = bpf_get_current_pid_tgid() >> 32;
  u32 pid = 0, tgid = 0;
  if (!LOOKUP(watched, &parent))
    return 0;
  read_kernel(&pid, sizeof pid, (void *)(child + AT_LOAD(PID_OFFSET)));
  read_kernel(&tgid, sizeof tgid, (void *)(child + AT_LOAD(TGID_OFFSET)));
  if (pid != tgid) /* a thread */
    return 0;
  if (UPDATE(watched, &pid, &parent))
    count_one(COUNTER_NO_ROOM);
  return 0;
}
