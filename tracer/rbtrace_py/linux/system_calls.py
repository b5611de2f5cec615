"""The system call that a thread is in, by ``/proc/PID/task/TID/syscall``.

A thread on a CPU has none. After a signal or a debugger interrupted its sleep, it shows
``restart_syscall``, and the purpose of its wait is unknown.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass, field

from rbtrace_py.errors import RbtraceError, UnreadableMemory
from rbtrace_py.linux.memory import Memory
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.text import safe_text

CALL_NAMES = {
    0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64",
    19: "readv", 20: "writev", 23: "select", 26: "msync", 34: "pause", 35: "nanosleep",
    40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom",
    46: "sendmsg", 47: "recvmsg", 56: "clone", 57: "fork", 58: "vfork", 59: "execve",
    61: "wait4", 65: "semop", 69: "msgsnd",
    70: "msgrcv", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
    76: "truncate", 77: "ftruncate", 78: "getdents", 82: "rename", 85: "creat",
    87: "unlink", 128: "rt_sigtimedwait", 130: "rt_sigsuspend", 162: "sync",
    202: "futex", 208: "io_getevents", 217: "getdents64", 219: "restart_syscall",
    220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
    257: "openat", 270: "pselect6", 271: "ppoll", 275: "splice", 276: "tee",
    277: "sync_file_range", 281: "epoll_pwait", 288: "accept4", 295: "preadv",
    296: "pwritev", 299: "recvmmsg", 306: "syncfs", 307: "sendmmsg", 2: "open",
    322: "execveat", 326: "copy_file_range", 327: "preadv2", 328: "pwritev2",
    426: "io_uring_enter", 435: "clone3", 437: "openat2", 441: "epoll_pwait2",
    449: "futex_waitv",
}  # fmt: skip
"""Blocking system calls of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl)."""

ON_DESCRIPTOR = {
    "read": "read", "pread64": "read", "readv": "read", "preadv": "read",
    "preadv2": "read", "recvfrom": "read", "recvmsg": "read", "recvmmsg": "read",
    "write": "write", "pwrite64": "write", "writev": "write", "pwritev": "write",
    "pwritev2": "write", "sendto": "write", "sendmsg": "write", "sendmmsg": "write",
    "sendfile": "write", "connect": "connect", "accept": "accept", "accept4": "accept",
    "fsync": "sync", "fdatasync": "sync", "syncfs": "sync", "sync_file_range": "sync",
    "epoll_wait": "epoll", "epoll_pwait": "epoll", "epoll_pwait2": "epoll",
    "ioctl": "ioctl", "io_uring_enter": "io_uring", "ftruncate": "truncate",
    "getdents": "read", "getdents64": "read", "io_getevents": "io_getevents",
}  # fmt: skip
"""Action on the descriptor that is the first argument, by system call."""

_LOCKS = (7, 38)
"""F_SETLKW and F_OFD_SETLKW of fcntl, which wait for a lock."""
_POLLIN, _POLLOUT = 0x001, 0x004
_POLL = struct.Struct("=ihh")
_MOST_POLLED = 256
_MOST_SELECTED = 1 << 14
_FUTEX_WAIT, _FUTEX_COMMANDS = 0, 0x7F
_CONTENDED = 2
"""The value of a glibc lock that has waiters (lowlevellock.h)."""
_OWNER_AT = 8
"""Offset of ``pthread_mutex_t.__data.__owner``, a tid, from the lock's word (glibc)."""
_LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True)
class SystemCall:
    """A system call that a thread is in; ``name`` is empty if it is unknown."""

    number: int
    arguments: tuple[int, ...]

    @property
    def name(self) -> str:
        return CALL_NAMES.get(self.number, "")


@dataclass(frozen=True, slots=True)
class Awaited:
    """The purpose of a wait in a system call.

    Attributes:
        action: ``read``, ``write``, ``poll``, ``lock`` …, or the call's name.
        descriptors: Descriptors in its arguments, each with an action.
        pid: Pid of the child; 0: any child; negative: a process group; None: no child.
        path: Path of the file being opened, safe to print.
        lock: Address of the native lock, or 0.
        owner: Owner of the lock, a tid in the target's namespace; 0: unknown.
    """

    action: str
    descriptors: tuple[tuple[int, str], ...] = field(default=())
    pid: int | None = None
    path: str = ""
    lock: int = 0
    owner: int = 0


def system_call(process: Process, tid: int) -> SystemCall | None:
    """Return a thread's system call; None if it runs, has ended, or is unreadable."""
    try:
        words = process.read(f"task/{tid}/syscall", 512).split()
    except RbtraceError:
        return None
    if len(words) != 9:
        return None  # running, or blocked outside of a call
    try:
        arguments = tuple(int(word, 16) for word in words[1:7])
        return SystemCall(int(words[0]), arguments)
    except ValueError:
        return None


def awaited(call: SystemCall, memory: Memory) -> Awaited:
    """Return the purpose of a wait. Arguments are read from the target's memory."""
    name, first = call.name, ctypes.c_int(call.arguments[0]).value
    second = call.arguments[1]
    if name in ON_DESCRIPTOR:
        action = ON_DESCRIPTOR[name]
        return Awaited(action, ((first, action),))
    if name == "flock" or (name == "fcntl" and second & 0xFF in _LOCKS):
        return Awaited("lock", ((first, "lock"),))
    if name == "wait4":
        return Awaited("wait", pid=0 if first == -1 else first)
    if name == "waitid":
        return Awaited("wait", pid=second & 0xFFFFFFFF if first == 1 else 0)
    if name in ("poll", "ppoll"):
        return Awaited("poll", _polled(memory, *call.arguments[:2]))
    if name in ("select", "pselect6"):
        return Awaited("poll", _selected(memory, call.arguments))
    if name in ("open", "openat", "openat2", "creat"):
        at = 0 if name in ("open", "creat") else 1
        return Awaited("open", path=_path(memory, call.arguments[at]))
    if name == "futex":
        return _futex(memory, call.arguments)
    return Awaited(name or f"system call {call.number}")


def _polled(memory: Memory, address: int, count: int) -> tuple[tuple[int, str], ...]:
    size = _POLL.size * min(count, _MOST_POLLED)
    try:
        data = memory.read(address, size) if size else b""
    except UnreadableMemory:
        return ()
    return tuple(
        (fd, _direction(bool(events & _POLLIN), bool(events & _POLLOUT)))
        for fd, events, _ in _POLL.iter_unpack(data)
        if fd >= 0
    )


def _direction(is_read: bool, is_written: bool) -> str:
    if is_read and is_written:
        return "read or write"
    return "write" if is_written else "read"


def _selected(
    memory: Memory, arguments: tuple[int, ...]
) -> tuple[tuple[int, str], ...]:
    """Return the descriptors of select(2): its read, write, and exception sets."""
    count = min(arguments[0], _MOST_SELECTED)
    sets = [_bits(memory, address, count) for address in arguments[1:4]]
    fds = sorted(set().union(*sets))
    reading, writing, _ = sets
    return tuple((fd, _direction(fd in reading, fd in writing)) for fd in fds)


def _bits(memory: Memory, address: int, count: int) -> set[int]:
    if not address or not count:
        return set()
    try:
        data = memory.read(address, (count + 63) // 64 * 8)
    except UnreadableMemory:
        return set()
    word = int.from_bytes(data, "little")
    return {number for number in range(count) if word >> number & 1}


def _path(memory: Memory, address: int) -> str:
    """Read the path at ``address``; its NUL may be at the end of a mapping."""
    data = b""
    while b"\0" not in data and len(data) < _LONGEST_PATH:
        place = address + len(data)
        try:
            data += memory.read(place, 256 - place % 256)
        except UnreadableMemory:
            break
    return safe_text(data.partition(b"\0")[0])


def _futex(memory: Memory, arguments: tuple[int, ...]) -> Awaited:
    """Read a futex. Only glibc locks wait for a word of 2 with a plain FUTEX_WAIT."""
    address, operation, expected = arguments[:3]
    is_lock = operation & _FUTEX_COMMANDS == _FUTEX_WAIT and (
        expected & 0xFFFFFFFF == _CONTENDED
    )
    if not is_lock:
        return Awaited("futex")
    try:
        owner = struct.unpack("=I", memory.read(address + _OWNER_AT, 4))[0]
    except UnreadableMemory:
        owner = 0
    return Awaited("futex", lock=address, owner=owner)
