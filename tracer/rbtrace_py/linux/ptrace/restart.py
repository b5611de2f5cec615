"""System calls that a stop interrupted, and how the thread resumes them.

A stop ends the sleep of a system call. The value in the result register then tells
whether the kernel restarts the call: it does so if the thread continues with its old
registers. It does not after a detour through a signal frame, because a frame cannot
contain the number of the call. Then the registers must be changed to repeat it.
"""

from __future__ import annotations

from rbtrace_py.linux.ptrace.signal_frame import NO_CALL, Registers

_EINTR = 4
_RESTART = (512, 513, 514)
"""ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND (include/linux/errno.h)."""
_RESTART_BLOCK = 516
_SYSCALL_SIZE = 2

_NEVER_RESTARTED = frozenset(
    {65, 128, 208, 220, 232, 281, 333, 426, 441}
    | {0, 1, 19, 20, 42, 43, 44, 45, 46, 47, 288, 299, 307}
)
"""Calls that any stop ends with EINTR (signal(7)). If they are restarted, their timeout
starts over.

These are semop, rt_sigtimedwait, io_getevents, semtimedop, epoll_wait, epoll_pwait,
io_pgetevents, io_uring_enter, and epoll_pwait2. On a socket with a timeout
(SO_RCVTIMEO, SO_SNDTIMEO), they include read, write, readv, writev, connect, accept,
sendto, recvfrom, sendmsg, recvmsg, accept4, recvmmsg, and sendmmsg. Without a timeout
the kernel restarts the latter itself (sock_intr_errno). EINTR means that no data was
transferred: otherwise they return its size."""


def _negative(number: int) -> int:
    return (1 << 64) - number


def _result(registers: Registers) -> int:
    """Return the errno in rax; 0 without an error, or if no system call has ended."""
    if registers.orig_rax >> 63:
        return 0
    return -registers.rax % (1 << 64)


def was_asleep(registers: Registers) -> bool:
    """Return whether a stop ended the sleep of a system call."""
    result = _result(as_if_not_stopped(registers))
    return result == _RESTART_BLOCK or result in _RESTART


def as_if_not_stopped(registers: Registers) -> Registers:
    """Return registers with which the kernel resumes the call that a stop ended.

    A call that ended with EINTR is marked for a restart unless a handler runs. If a
    real signal ended it, the kernel changes this back to EINTR.
    """
    if _result(registers) == _EINTR and registers.orig_rax in _NEVER_RESTARTED:
        return registers._replace(rax=_negative(514))
    return registers


def not_restarted(registers: Registers) -> Registers:
    """Return registers without ``restart_syscall``: the call ends with EINTR."""
    if _result(registers) == _RESTART_BLOCK:
        return registers._replace(rax=_negative(_EINTR))
    return registers


def without_kernel(registers: Registers) -> Registers:
    """Return registers for a signal frame: the thread repeats the call itself.

    Calls whose timeout the kernel keeps (nanosleep, poll, futex) end with EINTR,
    because the kernel discards the timeout at the return from any signal.
    """
    registers = as_if_not_stopped(registers)
    result = _result(registers)
    if result in _RESTART:
        back = registers.rip - _SYSCALL_SIZE
        registers = registers._replace(rax=registers.orig_rax, rip=back)
    elif result == _RESTART_BLOCK:
        registers = registers._replace(rax=_negative(_EINTR))
    return registers._replace(orig_rax=NO_CALL)
