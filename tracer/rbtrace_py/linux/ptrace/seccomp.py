"""Seccomp filters of a process, and the system calls that they allow.

A filter is a classic BPF program over ``struct seccomp_data`` (linux/seccomp.h). It is
executed symbolically, because some arguments of the system call are unknown: if a
branch depends on an unknown value, both branches are followed.
"""

from __future__ import annotations

import operator
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rbtrace_py.linux.process import parse_status

ERRNO, LOG, ALLOW = 0x00050000, 0x7FFC0000, 0x7FFF0000
"""SECCOMP_RET_ERRNO, _LOG, _ALLOW: actions of a filter."""

_ACTION = 0xFFFF0000
_KILL = 0
_X86_64 = 0xC000003E
"""AUDIT_ARCH_X86_64."""
_INSTRUCTION = struct.Struct("=HBBI")
"""``struct sock_filter``: code, jump if true, jump if false, k."""
_MOST_STEPS = 200_000
_WORD = (1 << 32) - 1
_SYS_ADMIN = 1 << 21
_FIRST_USER_NAMESPACE = "user:[4026531837]"
"""PROC_USER_INIT_INO."""

Instruction = tuple[int, int, int, int]
Filter = Sequence[Instruction]
_State = tuple[int, int | None, int | None, tuple[int | None, ...]]
"""Position, accumulator, index register, and memory; None: unknown."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call of x86-64; an argument that is None or missing is unknown."""

    name: str
    number: int
    arguments: tuple[int | None, ...] = ()


RESTART = Call("restart_syscall", 219)
"""The call that resumes a sleep after a stop."""


def can_read_filters() -> bool:
    """Return whether the kernel lets us read filters (``seccomp_get_filter``).

    It requires CAP_SYS_ADMIN in the initial user namespace, and a reader without a
    filter.
    """
    with open("/proc/self/status", "rb") as file:
        status = parse_status(file.read())
    is_admin = int(status.get("CapEff", "0"), 16) & _SYS_ADMIN
    is_first = os.readlink("/proc/self/ns/user") == _FIRST_USER_NAMESPACE
    return bool(is_admin) and is_first and status.get("Seccomp", "0") == "0"


def parse_filter(data: bytes) -> Filter:
    """Parse the result of PTRACE_SECCOMP_GET_FILTER."""
    return list(_INSTRUCTION.iter_unpack(data))


def answers(program: Filter, call: Call) -> set[int]:
    """Return all possible actions for the call; KILL if execution fails."""
    data = _data(call)
    states: list[_State] = [(0, 0, 0, (0,) * 16)]
    seen: set[_State] = set()
    found: set[int] = set()
    while states:
        state = states.pop()
        if state in seen:
            continue
        seen.add(state)
        if state[0] >= len(program) or len(seen) > _MOST_STEPS:
            return {_KILL}
        code, _, _, k = program[state[0]]
        if code & 7 == _RET:
            value = state[1] if code & 0x18 == _RET_A else k
            found.add(_KILL if value is None else value)
        else:
            states += _step(program[state[0]], state, data)
    return found


def is_allowed(filters: Sequence[Filter], call: Call, or_errno: bool = False) -> bool:
    """Return whether all filters allow the call, or (``or_errno``) at worst fail it."""
    fine = {ALLOW, LOG, ERRNO} if or_errno else {ALLOW, LOG}
    return all(
        answer & _ACTION in fine for each in filters for answer in answers(each, call)
    )


_LD, _LDX, _ST, _STX, _ALU, _JMP, _RET, _MISC = range(8)
_RET_A = 0x10
_ABS, _MEM, _LEN = 0x20, 0x60, 0x80
_DATA_SIZE = 64


def _data(call: Call) -> list[int | None]:
    """Return ``struct seccomp_data``: number, architecture, address, arguments."""
    words: list[int | None] = [call.number, _X86_64, None, None]
    for argument in (*call.arguments, *(None,) * 6)[:6]:
        if argument is None:
            words += [None, None]
        else:
            words += [argument & _WORD, argument >> 32 & _WORD]
    return words


def _step(
    instruction: Instruction, state: _State, data: Sequence[int | None]
) -> Iterator[_State]:
    """Yield the possible next states; none for an invalid instruction."""
    code, true, false, k = instruction
    at, a, x, memory = state
    kind, after = code & 7, at + 1
    if kind == _LD:
        yield after, _loaded(code, k, data, memory), x, memory
    elif kind == _LDX:
        yield after, a, _loaded(code, k, data, memory), memory
    elif kind in (_ST, _STX):
        value = a if kind == _ST else x
        yield after, a, x, (*memory[: k & 15], value, *memory[(k & 15) + 1 :])
    elif kind == _ALU:
        yield after, _computed(code, a, x if code & 8 else k), x, memory
    elif kind == _MISC:
        yield (after, x, x, memory) if code & 0xF8 == 0x80 else (after, a, a, memory)
    elif code & 0xF0 == 0:
        yield after + k, a, x, memory
    else:
        ways = _compared(code & 0xF0, a, x if code & 8 else k)
        yield from ((after + (true if way else false), a, x, memory) for way in ways)


def _loaded(
    code: int, k: int, data: Sequence[int | None], memory: Sequence[int | None]
) -> int | None:
    mode = code & 0xE0
    if mode == _ABS:
        return data[k // 4] if k % 4 == 0 and k < _DATA_SIZE else None
    if mode == _MEM:
        return memory[k & 15]
    return _DATA_SIZE if mode == _LEN else k


_OPERATIONS: dict[int, Callable[[int, int], int | None]] = {
    0x00: operator.add,
    0x10: operator.sub,
    0x20: operator.mul,
    0x30: lambda a, b: a // b if b else None,
    0x40: operator.or_,
    0x50: operator.and_,
    0x60: lambda a, b: a << b if b < 32 else None,
    0x70: lambda a, b: a >> b if b < 32 else None,
    0x80: lambda a, b: -a,
    0xA0: operator.xor,
}


def _computed(code: int, a: int | None, b: int | None) -> int | None:
    operation = _OPERATIONS.get(code & 0xF0)
    if a is None or b is None or operation is None:
        return None
    result = operation(a, b)
    return None if result is None else result & _WORD


def _compared(operation: int, a: int | None, b: int | None) -> tuple[bool, ...]:
    if a is None or b is None:
        return (True, False)
    if operation == 0x10:
        return (a == b,)
    if operation == 0x20:
        return (a > b,)
    return (a >= b,) if operation == 0x30 else (bool(a & b),)
