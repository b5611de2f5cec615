/*
 * Tasks that the scheduler's tracepoints pass.
 *
 *   PID_OFFSET, TGID_OFFSET, STATE_OFFSET  in struct task_struct, from BTF
 *   STATE_GIVEN  1: sched_switch passes the state of the leaving task (Linux 5.19)
 */

/* Return the ids of a task, like bpf_get_current_pid_tgid. */
static __always_inline u64 ids_of(u64 task) {
  u64 pid_offset = AT_LOAD(PID_OFFSET), tgid_offset = AT_LOAD(TGID_OFFSET);
  u64 ids = 0;
  u32 pid = 0, tgid = 0;
  if (tgid_offset == pid_offset + 4) {
    read_kernel(&ids, sizeof ids, (void *)(task + pid_offset));
    return ids;
  }
  read_kernel(&pid, sizeof pid, (void *)(task + pid_offset));
  read_kernel(&tgid, sizeof tgid, (void *)(task + tgid_offset));
  return (u64)tgid << 32 | pid;
}

/* At sched_switch: return the state of the leaving task; 0: runnable. */
static __always_inline u32 leaving_state(struct bpf_raw_tracepoint_args *ctx) {
  u32 state = 0;
  if (ctx->args[0]) /* preempted: runnable regardless of its state */
    return 0;
  if (AT_LOAD(STATE_GIVEN))
    return (u32)ctx->args[3];
  read_kernel(&state, sizeof state, (void *)(ctx->args[1] + AT_LOAD(STATE_OFFSET)));
  return state;
}
