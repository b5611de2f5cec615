"""System calls of the agent, which a seccomp filter of its process may forbid.

They were observed with Ruby 2.7 to 4.0: calls of the detour, of Ruby and the C library
while the code is loaded, and of the agent for each of its commands.
"""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.linux.ptrace.seccomp import RESTART, Call, Filter, is_allowed

_THREAD = 0x3D0F00
"""Flags of clone for a thread in C libraries."""
_PROCESS = 0x1200011
"""Flags of clone for a process in glibc: CLONE_CHILD_SETTID, CLONE_CHILD_CLEARTID,
SIGCHLD."""

_SERVING = (
    RESTART,  # the kernel may wake a thread that waits with a timeout
    Call("rt_sigreturn", 15),
    Call("rt_sigprocmask", 14),
    Call("mmap", 9, (None, None, 0)),
    Call("mmap", 9, (None, None, 3)),
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
    Call("accept4", 288),
    Call("getsockopt", 55),
    Call("getsockname", 51),
    Call("recvfrom", 45),
    Call("recvmsg", 47),
    Call("sendto", 44),
    Call("getrandom", 318),
)
"""Calls of the agent for any command, and of Ruby for running threads."""
_SERVING_OPTIONAL = (
    Call("clone3", 435),
    Call("rseq", 334),
    Call("set_robust_list", 273),
    Call("prctl", 157),
    Call("sched_getaffinity", 204),
    Call("geteuid", 107),
    Call("timer_settime", 223),
    Call("epoll_wait", 232),
    Call("ioctl", 16),
    Call("lseek", 8),
    Call("mremap", 25),  # by realloc
    Call("stat", 4),
    Call("select", 23),
    Call("poll", 7),
)
"""Calls for the same purposes whose failure the caller tolerates."""

NEEDED = (
    *_SERVING,
    Call("rt_sigaction", 13),
    Call("mmap", 9, (None, None, 1)),
    Call("mmap", 9, (None, None, 5)),
    Call("mprotect", 10, (None, None, 1)),
    Call("readlink", 89),
    Call("symlink", 88),
    Call("unlink", 87),
    Call("socket", 41, (1,)),
    Call("bind", 49),
    Call("listen", 50),
    Call("sendmsg", 46),
)
"""Calls that must succeed while the agent is loaded."""
OPTIONAL = (
    *_SERVING_OPTIONAL,
    Call("chmod", 90),
    Call("getdents64", 217),
    Call("mkdir", 83),
    Call("memfd_create", 319),
    Call("ftruncate", 77),
    Call("getuid", 102),
    Call("getgid", 104),
    Call("getegid", 108),
    Call("lstat", 6),
    Call("accept", 43),
    Call("connect", 42),
    Call("pipe2", 293),
    Call("writev", 20),
    Call("prlimit64", 302),
)
"""Calls whose failure the caller ignores or reports."""

_FORKING = (
    Call("clone", 56, (_PROCESS,)),
    Call("fork", 57),  # by musl
    Call("wait4", 61),
    Call("kill", 62),
    Call("timer_create", 222),
    Call("timer_delete", 226),
)
_DUMPING = (*_FORKING, Call("pipe2", 293))
COMMANDS = {
    "arm": (
        Call("memfd_create", 319),
        Call("ftruncate", 77),
        Call("prlimit64", 302),
        Call("sendmsg", 46),
    ),
    "eval": (Call("pipe2", 293), Call("writev", 20)),
    "heapdump": _DUMPING,
    "shapesdump": _DUMPING,
    "fork": _FORKING,
    "stop": (Call("unlink", 87),),
}
"""Additional calls of each command.

The child of a dump makes further calls, but a filter that kills ends only the child.
"""


def denied_call(filters: Sequence[Filter]) -> str | None:
    """Return the name of a call that prevents loading the agent, or None."""
    for call in NEEDED:
        if not is_allowed(filters, call):
            return call.name
    return _first_fatal(filters, OPTIONAL)


def calls_of(command: str) -> tuple[Call, ...]:
    """Return the calls of a loaded agent for a command."""
    return (*_SERVING, *_SERVING_OPTIONAL, *COMMANDS.get(command, ()))


def fatal_call(filters: Sequence[Filter], command: str) -> str | None:
    """Return the name of a call of a command that ends the process, or None.

    Calls that may fail with an error are not fatal: the agent reports the error.
    """
    return _first_fatal(filters, calls_of(command))


def _first_fatal(filters: Sequence[Filter], calls: Sequence[Call]) -> str | None:
    for call in calls:
        if not is_allowed(filters, call, or_errno=True):
            return call.name
    return None
