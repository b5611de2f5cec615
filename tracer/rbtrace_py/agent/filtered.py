"""System calls that a seccomp filter must allow before the agent is loaded.

Seen in traces of Ruby 2.7 to 4.0: the calls of the detour, of Ruby and the C library
while the code is loaded, and of the agent when it answers, evaluates and arms.
"""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.linux.ptrace.seccomp import Call, Filter, is_allowed

RESTART = Call("restart_syscall", 219)
"""The call by which a thread goes on that was stopped in a sleep."""

_THREAD = 0x3D0F00
"""Flags of clone for a thread, as C libraries make it."""

NEEDED = (
    RESTART,
    Call("rt_sigreturn", 15),
    Call("rt_sigaction", 13),
    Call("rt_sigprocmask", 14),
    Call("mmap", 9, (None, None, 0)),
    Call("mmap", 9, (None, None, 1)),
    Call("mmap", 9, (None, None, 3)),
    Call("mmap", 9, (None, None, 5)),
    Call("mprotect", 10, (None, None, 1)),
    Call("mprotect", 10, (None, None, 3)),
    Call("munmap", 11),
    Call("brk", 12),
    Call("madvise", 28),
    Call("read", 0),
    Call("write", 1),
    Call("close", 3),
    Call("openat", 257),
    Call("newfstatat", 262),
    Call("fstat", 5),
    Call("readlink", 89),
    Call("symlink", 88),
    Call("unlink", 87),
    Call("fcntl", 72),
    Call("clone", 56, (_THREAD,)),
    Call("exit", 60),
    Call("futex", 202),
    Call("sched_yield", 24),
    Call("clock_gettime", 228),
    Call("getpid", 39),
    Call("gettid", 186),
    Call("tgkill", 234),
    Call("sigaltstack", 131),
    Call("ppoll", 271),
    Call("pselect6", 270),
    Call("socket", 41, (1,)),
    Call("bind", 49),
    Call("listen", 50),
    Call("accept4", 288),
    Call("getsockopt", 55),
    Call("getsockname", 51),
    Call("recvfrom", 45),
    Call("recvmsg", 47),
    Call("sendto", 44),
    Call("sendmsg", 46),
    Call("getrandom", 318),
)
OPTIONAL = (
    Call("clone3", 435),
    Call("rseq", 334),
    Call("set_robust_list", 273),
    Call("prctl", 157),
    Call("sched_getaffinity", 204),
    Call("chmod", 90),
    Call("getdents64", 217),
    Call("mkdir", 83),
    Call("memfd_create", 319),
    Call("ftruncate", 77),
    Call("getuid", 102),
    Call("geteuid", 107),
    Call("getgid", 104),
    Call("getegid", 108),
    Call("timer_settime", 223),
    Call("epoll_wait", 232),
    Call("ioctl", 16),
    Call("lseek", 8),
    Call("lstat", 6),
    Call("stat", 4),
    Call("accept", 43),
    Call("connect", 42),
    Call("pipe2", 293),
    Call("writev", 20),
    Call("select", 23),
    Call("prlimit64", 302),
)
"""Those that may fail: what wants them does without, or says so."""


def denied_call(filters: Sequence[Filter]) -> str | None:
    """The name of a call that they may not let through; None if there is none."""
    for call in NEEDED:
        if not is_allowed(filters, call):
            return call.name
    for call in OPTIONAL:
        if not is_allowed(filters, call, or_errno=True):
            return call.name
    return None


def can_restart(filters: Sequence[Filter]) -> bool:
    """May a sleep that was stopped be taken up again?"""
    return is_allowed(filters, RESTART)
