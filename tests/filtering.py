"""Programs under seccomp filters, and the filters."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable

ALLOW, LOG, KILL = 0x7FFF0000, 0x7FFC0000, 0x80000000
EPERM, ENOSYS = 0x00050001, 0x00050026
_LOAD, _IF, _IF_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16
_NAMESPACES = 0x7E020000

RUN = """
import ctypes, os, struct, sys
data = bytes.fromhex(sys.argv[1])
libc = ctypes.CDLL(None)
kept = ctypes.create_string_buffer(data)
program = struct.pack("<HxxxxxxQ", len(data) // 8, ctypes.addressof(kept))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""A program that runs a command under the filter in its first argument
(hexadecimal)."""


def filtered(program: bytes, *command: str) -> tuple[str, ...]:
    """Return the words that run a command under the filter."""
    return (sys.executable, "-c", RUN, program.hex(), *command)


def _line(code: int, k: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, true, false, k)


def _for_number(number: int, *lines: bytes) -> bytes:
    """Return what the filter does with the system call of that number."""
    return _line(_IF, number, 0, len(lines)) + b"".join(lines)


def allowing_all() -> bytes:
    return _line(_RETURN, ALLOW)


def forbidding(numbers: Iterable[int], answer: int = KILL) -> bytes:
    """Return a filter that allows all system calls but these."""
    each = (_for_number(number, _line(_RETURN, answer)) for number in numbers)
    return _line(_LOAD, _NUMBER) + b"".join(each) + _line(_RETURN, ALLOW)


_DENIED_BY_DOCKER = (
    {134, 139, 153, 155, 156, 159, 161, 163, 164, 165, 166, 167, 168, 169, 172, 173}
    | {174, 175, 176, 177, 178, 179, 180, 212, 227, 237, 238, 239, 246, 248, 249, 250}
    | {256, 272, 279, 298, 300, 303, 304, 305, 308, 310, 311, 312, 313, 320, 321, 323}
    | {425, 426, 427, 428, 429, 430, 431, 432, 442}
)


OF_SYS_PTRACE = (310, 311, 312, 438)
"""process_vm_readv, process_vm_writev, kcmp, pidfd_getfd."""
OF_BPF = (321, 298)
"""bpf, perf_event_open: of CAP_BPF and CAP_PERFMON."""


def like_dockers(also: Iterable[int] = ()) -> bytes:
    """Return a filter of the shape of Docker's default.

    It kills for calls of another architecture, and allows the calls on its list: clone
    only without namespaces, and socket only without vsock. clone3 fails with ENOSYS,
    and any other call with EPERM.

    also: calls that it allows because of the container's capabilities
    """
    refuse, allow = _line(_RETURN, EPERM), _line(_RETURN, ALLOW)
    first_argument = _line(_LOAD, _ARGUMENT)
    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_IF, 0xC000003E, 1, 0),
        _line(_RETURN, KILL),
        _line(_LOAD, _NUMBER),
        _for_number(435, _line(_RETURN, ENOSYS)),
        _for_number(
            56, first_argument, _line(_IF_BITS, _NAMESPACES, 1, 0), allow, refuse
        ),
        _for_number(41, first_argument, _line(_IF, 40, 1, 0), allow, refuse),
    ]
    listed = set(range(335)) | set(range(424, 460))
    allowed = sorted(listed - _DENIED_BY_DOCKER | set(also))
    lines += (_for_number(number, allow) for number in allowed)
    return b"".join([*lines, refuse])
