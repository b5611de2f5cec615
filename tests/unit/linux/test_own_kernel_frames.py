"""Kernel functions that are on a stack because our own BPF program reads it."""

from __future__ import annotations

import pytest

from rbtrace_py.linux.kernel_frames import without_own

PROGRAM = "bpf_prog_dfe0b9c20be307f2_on_switch [bpf]"
CALL = ["do_syscall_64", "entry_SYSCALL_64_after_hwframe"]
STOP = ["schedule", "ptrace_stop", "ptrace_do_notify", "ptrace_notify"]


@pytest.mark.parametrize(
    "own",
    [
        [],
        [PROGRAM],
        [PROGRAM, "bpf_trace_run4"],
        [PROGRAM, PROGRAM, "bpf_trace_run3"],
        [PROGRAM, "bpf_trace_run4", "__traceiter_sched_switch"],
        [PROGRAM, "bpf_trace_run3", "__bpf_trace_xfs_read [xfs]"],
        ["[unknown]", "bpf_trace_run4"],
        ["perf_trace_run_bpf_submit", "perf_trace_sched_switch.isra.0"],
        ["perf_syscall_enter", "syscall_trace_enter"],
        ["perf_call_bpf_exit.constprop.0", "perf_syscall_exit", "syscall_exit_work"],
    ],
)
@pytest.mark.parametrize(
    "real",
    [
        [],
        CALL,
        ["__schedule", *STOP, "syscall_trace_enter", *CALL],
        ["__seccomp_filter", "syscall_trace_enter", *CALL],
        ["__schedule", *STOP, "syscall_exit_work", *CALL],
        ["[unknown]", *CALL],
        ["vfs_read", PROGRAM, "bpf_trace_run4", *CALL],
    ],
)
def test_frames_that_lead_to_our_program_are_removed(
    own: list[str], real: list[str]
) -> None:
    assert without_own([*own, *real]) == real


def test_a_trace_of_others_is_theirs() -> None:
    names = ["syscall_trace_enter", *CALL]
    assert without_own(names) == names
    assert without_own([PROGRAM, *names]) == names
