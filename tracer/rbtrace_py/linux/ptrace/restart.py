"""System calls that a stop has interrupted, and how a thread takes them up again.

A stop ends the sleep of a call. What the kernel keeps in the result register then says
whether it would start the call again: it does so itself when the thread goes on with
the registers it had. After a detour through a signal frame it does not, as no frame has
room for the number of the call; so the registers must say it in another way.
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
"""Those that any stop ends with EINTR (signal(7)). Started again, a time limit of
theirs begins anew.

semop, rt_sigtimedwait, io_getevents, semtimedop, epoll_wait, epoll_pwait,
io_pgetevents, io_uring_enter, epoll_pwait2; and of a socket with a limit (SO_RCVTIMEO,
SO_SNDTIMEO) read, write, readv, writev, connect, accept, sendto, recvfrom, sendmsg,
recvmsg, accept4, recvmmsg, sendmmsg: without one the kernel starts these again itself
(sock_intr_errno). With EINTR nothing was moved: what was, is what they return."""


def _negative(number: int) -> int:
    return (1 << 64) - number


def _result(registers: Registers) -> int:
    """The errno in rax, 0 if it is none or this is no end of a call."""
    if registers.orig_rax >> 63:
        return 0
    return -registers.rax % (1 << 64)


def was_asleep(registers: Registers) -> bool:
    """Has a stop ended the sleep of a call? Of one that ran it ends nothing."""
    result = _result(as_if_not_stopped(registers))
    return result == _RESTART_BLOCK or result in _RESTART


def as_if_not_stopped(registers: Registers) -> Registers:
    """Registers with which the kernel goes on with the call that a stop has ended.

    A call that ended with EINTR is marked as one to be restarted unless a handler runs:
    if a real signal was what ended it, the kernel makes EINTR of it again.
    """
    if _result(registers) == _EINTR and registers.orig_rax in _NEVER_RESTARTED:
        return registers._replace(rax=_negative(514))
    return registers


def not_restarted(registers: Registers) -> Registers:
    """Registers without ``restart_syscall``: the call ends with EINTR."""
    if _result(registers) == _RESTART_BLOCK:
        return registers._replace(rax=_negative(_EINTR))
    return registers


def without_kernel(registers: Registers) -> Registers:
    """The same for a frame: the call is made once more, by its own instruction.

    Those with a time limit that is the kernel's to remember (nanosleep, poll, futex)
    end with EINTR, as the kernel forgets it at the return from any signal.
    """
    registers = as_if_not_stopped(registers)
    result = _result(registers)
    if result in _RESTART:
        back = registers.rip - _SYSCALL_SIZE
        registers = registers._replace(rax=registers.orig_rax, rip=back)
    elif result == _RESTART_BLOCK:
        registers = registers._replace(rax=_negative(_EINTR))
    return registers._replace(orig_rax=NO_CALL)
