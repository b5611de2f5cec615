"""A strict decoder of the x86-64 instructions of short compiled functions.

It knows lengths, what is loaded from where, and which register changes. At an
instruction that it does not know it stops, rather than lose its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI = range(8)
CALLER_SAVED = (RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11)
"""What a call may change (System V ABI)."""

LONGEST = 15
"""Bytes of the longest instruction."""


class Op(Enum):
    """What an instruction does, as far as it matters here."""

    LOAD = "load"
    ADDRESS = "lea"
    MOVE = "move"
    SHIFT_RIGHT = "shift right"
    ADD = "add"
    CALL = "call"
    JUMP = "jump"
    BRANCH = "branch"
    RETURN = "return"
    OTHER = "other"


class Segment(Enum):
    """What a memory operand is counted from."""

    NONE = "none"
    THREAD = "fs"


@dataclass(frozen=True, slots=True)
class Place:
    """A memory operand: ``displacement(base)``, or an absolute address.

    A base of None means that ``displacement`` is an address in the file. An
    operand with an index register has ``indexed`` set and is not followed.
    """

    base: int | None
    displacement: int
    segment: Segment = Segment.NONE
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    size: its length in bytes
    register: the one that changes, if one does
    source: the register that is moved
    place: the memory operand, if it has one
    width: bytes that are loaded
    target: where a call, jump or branch goes, None where that is not constant
    number: the constant operand of a shift
    """

    op: Op
    size: int
    register: int | None = None
    source: int | None = None
    place: Place | None = None
    width: int = 8
    target: int | None = None
    number: int = 0


class _Unknown(Exception):
    """An instruction that is not decoded."""


class _Bytes:
    """The bytes of one instruction, read from the front."""

    def __init__(self, code: bytes, address: int) -> None:
        self.code = code
        self.address = address
        self.at = 0

    def byte(self) -> int:
        if self.at >= min(len(self.code), LONGEST):
            raise _Unknown
        self.at += 1
        return self.code[self.at - 1]

    def number(self, size: int) -> int:
        """A signed little-endian number."""
        if self.at + size > min(len(self.code), LONGEST):
            raise _Unknown
        self.at += size
        return int.from_bytes(
            self.code[self.at - size : self.at], "little", signed=True
        )

    @property
    def end(self) -> int:
        return self.address + self.at


@dataclass(slots=True)
class _Prefixes:
    operand_16: bool = False
    segment: Segment = Segment.NONE
    rex: int = 0

    @property
    def width(self) -> int:
        return 8 if self.rex & 8 else 2 if self.operand_16 else 4

    @property
    def immediate(self) -> int:
        return 2 if self.operand_16 and not self.rex & 8 else 4


@dataclass(frozen=True, slots=True)
class _ModRM:
    """``register`` is the reg field; ``rm`` the other register, or None: ``place``."""

    register: int
    rm: int | None
    place: Place | None
    relative: bool = False


def decode(code: bytes, address: int) -> Instruction | None:
    """Decode the instruction at the beginning of ``code``; None if not known.

    address: where it stands, for what is relative to it
    """
    source = _Bytes(code, address)
    try:
        prefixes, opcode = _prefixes(source)
        if opcode == 0x0F:
            return _two_bytes(source, prefixes, source.byte())
        return _one_byte(source, prefixes, opcode)
    except _Unknown:
        return None


def _prefixes(source: _Bytes) -> tuple[_Prefixes, int]:
    prefixes = _Prefixes()
    while True:
        byte = source.byte()
        if byte == 0x66:
            prefixes.operand_16 = True
        elif byte == 0x64:
            prefixes.segment = Segment.THREAD
        elif byte not in (0x2E, 0x3E, 0xF2, 0xF3):
            break
    if byte & 0xF0 == 0x40:
        prefixes.rex = byte
        byte = source.byte()
    return prefixes, byte


def _modrm(source: _Bytes, prefixes: _Prefixes, immediate: int = 0) -> _ModRM:
    """Decode the operands; ``immediate`` bytes follow them, which rip counts in."""
    byte = source.byte()
    mode, rm = byte >> 6, byte & 7
    register = byte >> 3 & 7 | (prefixes.rex & 4) << 1
    high = (prefixes.rex & 1) << 3
    if mode == 3:
        return _ModRM(register, rm | high, None)
    if mode == 0 and rm == 5:
        displacement = source.number(4)
        place = Place(None, source.end + immediate + displacement, prefixes.segment)
        return _ModRM(register, None, place)
    base: int | None = rm | high
    indexed = False
    if rm == 4:
        sib = source.byte()
        indexed = (sib >> 3 & 7 | (prefixes.rex & 2) << 2) != 4
        base = sib & 7 | high
        if mode == 0 and sib & 7 == 5:
            place = Place(None, source.number(4), prefixes.segment, indexed)
            return _ModRM(register, None, place)
    displacement = source.number((0, 1, 4)[mode]) if mode else 0
    return _ModRM(register, None, Place(base, displacement, prefixes.segment, indexed))


def _made(source: _Bytes, op: Op, operands: _ModRM, width: int = 8) -> Instruction:
    """An instruction that sets its reg field from its other operand."""
    if operands.place is None and op is Op.LOAD:
        kind = Op.MOVE if width >= 4 else Op.OTHER
        return Instruction(kind, source.at, operands.register, operands.rm, width=width)
    return Instruction(
        op, source.at, operands.register, place=operands.place, width=width
    )


def _changed(source: _Bytes, register: int | None) -> Instruction:
    return Instruction(Op.OTHER, source.at, register)


def _goto(source: _Bytes, op: Op, size: int) -> Instruction:
    distance = source.number(size)
    return Instruction(op, source.at, target=source.end + distance)


def _one_byte(source: _Bytes, prefixes: _Prefixes, opcode: int) -> Instruction:
    low = opcode & 7 | (prefixes.rex & 1) << 3
    if opcode < 0x40 and opcode & 7 < 6:
        return _arithmetic(source, prefixes, opcode)
    if 0x50 <= opcode <= 0x5F:
        return _changed(source, low if opcode & 8 else None)
    if 0x70 <= opcode <= 0x7F:
        return _goto(source, Op.BRANCH, 1)
    if 0xB0 <= opcode <= 0xBF:
        wide = 8 if prefixes.rex & 8 else prefixes.immediate
        source.number(wide if opcode & 8 else 1)
        return _changed(source, low)
    if opcode in _SIMPLE:
        source.number(_SIMPLE[opcode])
        return _changed(source, RAX if opcode in (0x98, 0xC9) else None)
    if opcode in (0xE8, 0xE9, 0xEB):
        op = Op.CALL if opcode == 0xE8 else Op.JUMP
        return _goto(source, op, 1 if opcode == 0xEB else 4)
    if opcode in (0xC2, 0xC3):
        return Instruction(Op.RETURN, source.at)
    return _with_operands(source, prefixes, opcode)


_SIMPLE = {0x68: 4, 0x6A: 1, 0x90: 0, 0x98: 0, 0xA8: 1, 0xA9: 4, 0xC9: 0}
"""Instructions without a ModRM byte, and the bytes of their constants."""


def _arithmetic(source: _Bytes, prefixes: _Prefixes, opcode: int) -> Instruction:
    """add, or, adc, sbb, and, sub, xor, cmp in their six forms."""
    form, is_compare = opcode & 7, opcode & 0x38 == 0x38
    if form >= 4:
        source.number(1 if form == 4 else prefixes.immediate)
        return _changed(source, None if is_compare else RAX)
    operands = _modrm(source, prefixes)
    if is_compare:
        return _changed(source, None)
    target = operands.register if form >= 2 else operands.rm
    if opcode == 0x03 and operands.place is not None:
        return Instruction(Op.ADD, source.at, target, place=operands.place)
    return _changed(source, target)


def _with_operands(source: _Bytes, prefixes: _Prefixes, opcode: int) -> Instruction:
    if opcode in _IMMEDIATE:
        size = _IMMEDIATE[opcode] or prefixes.immediate
        return _with_constant(source, prefixes, opcode, size)
    if opcode in (0xF6, 0xF7):
        return _test_or_unary(source, prefixes, opcode)
    if opcode not in _KNOWN:
        raise _Unknown
    operands = _modrm(source, prefixes)
    if opcode == 0x8B:
        return _made(source, Op.LOAD, operands, prefixes.width)
    if opcode == 0x63:
        return _made(source, Op.LOAD, operands, 4)
    if opcode == 0x8A:
        return _made(source, Op.LOAD, operands, 1)
    if opcode == 0x8D:
        return _made(source, Op.ADDRESS, operands)
    if opcode == 0x89 and operands.rm is not None and prefixes.width >= 4:
        return Instruction(Op.MOVE, source.at, operands.rm, operands.register)
    if opcode == 0xFF:
        return _indirect(source, operands)
    if opcode in (0x84, 0x85):
        return _changed(source, None)
    if opcode in (0xD0, 0xD1) and operands.register & 7 == 5:
        return Instruction(Op.SHIFT_RIGHT, source.at, operands.rm, number=1)
    if opcode in (0x86, 0x87):
        raise _Unknown
    return _changed(source, operands.rm)


_IMMEDIATE = {
    0x69: 0, 0x6B: 1, 0x80: 1, 0x81: 0, 0x83: 1,
    0xC0: 1, 0xC1: 1, 0xC6: 1, 0xC7: 0,
}  # fmt: skip
"""Instructions with a constant, and its bytes; 0 as the operand size has it."""

_KNOWN = frozenset(b"\x63\x84\x85\x88\x89\x8a\x8b\x8d\xd0\xd1\xd2\xd3\xfe\xff")


def _with_constant(
    source: _Bytes, prefixes: _Prefixes, opcode: int, size: int
) -> Instruction:
    operands = _modrm(source, prefixes, size)
    number = source.number(size)
    if opcode in (0x69, 0x6B):
        return _changed(source, operands.register)
    if opcode in (0xC0, 0xC1) and operands.register & 7 == 5:
        return Instruction(Op.SHIFT_RIGHT, source.at, operands.rm, number=number & 0x3F)
    if opcode in (0x80, 0x81, 0x83) and operands.register & 7 in (4, 7):
        # A mask keeps what it is a mask of; cmp changes nothing.
        return _changed(source, None)
    return _changed(source, operands.rm)


def _test_or_unary(source: _Bytes, prefixes: _Prefixes, opcode: int) -> Instruction:
    kind = source.code[source.at] >> 3 & 7 if source.at < len(source.code) else 0
    size = 0 if kind > 1 else 1 if opcode == 0xF6 else prefixes.immediate
    operands = _modrm(source, prefixes, size)
    source.number(size)
    if kind >= 4:
        # mul and div change rdx as well; nothing that is mined does that.
        raise _Unknown
    return _changed(source, operands.rm if kind > 1 else None)


def _indirect(source: _Bytes, operands: _ModRM) -> Instruction:
    kind = operands.register & 7
    if kind == 2:
        return Instruction(Op.CALL, source.at)
    if kind == 4:
        return Instruction(Op.JUMP, source.at)
    if kind in (3, 5, 7):
        raise _Unknown
    return _changed(source, operands.rm if kind < 2 else None)


def _two_bytes(source: _Bytes, prefixes: _Prefixes, opcode: int) -> Instruction:
    if 0x80 <= opcode <= 0x8F:
        return _goto(source, Op.BRANCH, 4)
    if opcode in (0xB6, 0xB7, 0xBE, 0xBF):
        return _made(source, Op.LOAD, _modrm(source, prefixes), 2 if opcode & 1 else 1)
    if opcode == 0xBA:
        operands = _modrm(source, prefixes, 1)
        source.number(1)
        return _changed(source, operands.rm if operands.register & 7 > 4 else None)
    if opcode in _TO_REGISTER:
        return _changed(source, _modrm(source, prefixes).register)
    if 0x90 <= opcode <= 0x9F or opcode == 0x7E:
        return _changed(source, _modrm(source, prefixes).rm)
    if opcode in _NO_CHANGE:
        _modrm(source, prefixes)
        return _changed(source, None)
    raise _Unknown


_TO_REGISTER = frozenset((*range(0x40, 0x50), 0xAF, 0xBC, 0xBD))
"""cmovcc, imul, bsf, bsr."""

_NO_CHANGE = frozenset(
    b"\x10\x11\x12\x13\x16\x17\x1e\x1f\x28\x29\x2e\x2f\x57\x6c\x6e\x6f\x7f\xa3\xd6\xef"
)
"""Vector moves, hints (endbr64, nop) and bt: no general register changes."""
