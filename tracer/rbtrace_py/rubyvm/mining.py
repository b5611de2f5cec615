"""Facts from a Ruby's machine code: the VM's address, and offsets that builds may move.

Three short exported functions load the relevant members. Nothing is disassembled: the
bytes of the load instructions are searched. This is therefore the least trusted source:
its offsets count only if the process's memory contradicts the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import BadElf
from rbtrace_py.rubyvm.detect import Ruby
from rbtrace_py.rubyvm.layout import Offsets

_MOST_CODE = 512
_VARIABLE = rb"([\x05\x0d\x15\x1d\x25\x2d\x35\x3d])(....)"
"""Operands ``variable(%rip), %rax``, with any register."""
_POINTER = re.compile(rb"[\x48\x4c]\x8b" + _VARIABLE, re.S)
"""``mov pointer(%rip), %rax``"""
_ADDRESS = re.compile(rb"[\x48\x4c]\x8d" + _VARIABLE, re.S)
"""``lea variable(%rip), %rax``"""
_LOAD = rb"(?:\x0f\xb6|\x8a|\x8b)"
"""Load of an int or a byte, without the source operand."""
_STATUS = re.compile(_LOAD + rb"[\x80-\x87](....)", re.S)
"""``movzbl status(%fiber), %eax``"""
_DURING_GC = re.compile(
    rb"[\x48\x4c]\x8b[\x80-\xbf](....)"
    + _LOAD
    + rb"[\x40-\x7f](.)[\xc0\xc1][\xe8-\xef](.)",
    re.S,
)
"""``mov objspace(%vm), %rax; movzbl flags(%rax), %eax; shr $bit, %al``"""


@dataclass(frozen=True, slots=True)
class Mined:
    """The offsets found in machine code.

    Attributes:
        agreed: Fields with the same offset as in the layout.
        offered: Other offsets, by field name.
    """

    agreed: frozenset[str]
    offered: Mapping[str, int]


def mine(ruby: Ruby, offsets: Offsets) -> Mined:
    """Compare ``offsets`` with the loads in the binary's code."""
    found = {**_collector(ruby), **_fiber(ruby, offsets)}
    known = {name: getattr(offsets, name) for name in found}
    agreed = frozenset(name for name in found if found[name] == known[name])
    others = {
        name: offset
        for name, offset in found.items()
        if known[name] is not None and name not in agreed
    }
    return Mined(agreed, others)


def _fiber(ruby: Ruby, offsets: Offsets) -> dict[str, int]:
    """Find the fields near a fiber's status, which ``rb_fiber_alive_p`` reads.

    ``rb_fiber_t`` contains a jmp_buf of 40 or 200 bytes, depending on Ruby's
    configuration. It moves all members after it by the same distance.
    """
    known, before = offsets.fiber_status, offsets.fiber_prev
    code = _code(ruby, "rb_fiber_alive_p")[1]
    found = [_number(match[1]) for match in _STATUS.finditer(code)]
    statuses = [one for one in found if 256 <= one < 1024 and one % 8 == 0]
    if known is None or not statuses:
        return {}
    status = known if known in statuses else statuses[0]
    moved = {} if before is None else {"fiber_prev": before + status - known}
    return {"fiber_status": status, **moved}


def _collector(ruby: Ruby) -> dict[str, int]:
    """Find the collector and its flag, which ``rb_during_gc`` reads.

    Patch releases have moved the collector in the VM more often than other members.
    """
    match = _DURING_GC.search(_code(ruby, "rb_during_gc")[1])
    if match is None:
        return {}
    bit = 8 * _number(match[2]) + _number(match[3])
    return {
        "vm_objspace": _number(match[1]),
        "objspace_flags": bit // 32 * 4,
        "objspace_gc_bit": bit % 32,
    }


def pointer_in(ruby: Ruby, function: str) -> tuple[int, bool] | None:
    """Return the address of the pointer that a function loads first, in the process.

    The second value is True if the address is a slot of the GOT, which contains the
    pointer's address. Then the code loads from the loaded address again, at offset 0.
    """
    address, code = _code(ruby, function)
    match = _POINTER.search(code)
    if match is None:
        return None
    register = match[1][0] >> 3
    again = bytes(other << 3 | register for other in range(8))
    is_slot = re.search(
        rb"[\x48\x4c]\x8b[" + re.escape(again) + b"]", code[match.end() :]
    )
    return address + match.end() + _number(match[2]), is_slot is not None


def addresses_in(ruby: Ruby, function: str) -> tuple[int, ...]:
    """Return the addresses of variables that a function takes, in the process."""
    start, code = _code(ruby, function)
    found = _ADDRESS.finditer(code)
    return tuple(start + match.end() + _number(match[2]) for match in found)


def _code(ruby: Ruby, function: str) -> tuple[int, bytes]:
    """Return an exported function's address and code, or b"" if it does not exist."""
    with suppress(BadElf):
        symbol = ruby.symbols.find(function)
        if symbol is not None:
            address = symbol.address + ruby.bias
            size = symbol.size or _MOST_CODE
            return address, ruby.code(address, min(size, _MOST_CODE))
    return 0, b""


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
