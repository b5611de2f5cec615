"""The line of an instruction.

An iseq has a table of entries with a line, each valid from a position of an
instruction. The positions are in the entries (up to 2.4), in a separate array (2.5), or
in a succinct bit vector (2.6 and later, ``succ_index_table`` of iseq.c).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from rbtrace_py.linux.memory import Memory
from rbtrace_py.rubyvm.layout import Layout, LineTable

_MOST_ENTRIES = 1 << 18
_LAST_LINE = 1 << 30

_SLACK = 4
"""Maximum distance of a line before the first or after the last line of its iseq."""

_IMMEDIATE_WORDS = 6
_IMMEDIATE_ENTRIES = 9
_IMMEDIATE_POSITIONS = _IMMEDIATE_WORDS * _IMMEDIATE_ENTRIES
"""IMMEDIATE_TABLE_SIZE: positions whose rank is in 7 bits of a word."""

_BLOCK = struct.Struct("=IxxxxQ8Q")
"""``succ_dict_block``: rank, nine-bit ranks of its words, 512 bits."""
_BLOCK_POSITIONS = 512


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of an iseq, and the positions from which they are valid, ascending."""

    positions: tuple[int, ...]
    lines: tuple[int, ...]

    def at(self, position: int) -> int | None:
        """Return the line of the instruction at ``position``, or None if unknown."""
        index = bisect_right(self.positions, position) - 1
        if index < 0:
            return None
        line = self.lines[index]
        return line if 0 < line < _LAST_LINE else None


EMPTY = Lines((), ())
"""Lines of an iseq without a table."""
WRONG = Lines((), ())
"""An invalid table."""


@dataclass(frozen=True, slots=True)
class LineFields:
    """The fields of an iseq's body that describe its lines.

    Attributes:
        size: Size of the iseq in words.
        source: First and last line of its source; the last may be None (unknown).
    """

    entries: int
    positions: int | None
    count: int
    index: int | None
    size: int
    source: tuple[int, int | None] = (0, None)


def read_lines(memory: Memory, layout: Layout, fields: LineFields) -> Lines:
    """Read a whole table; return WRONG if it is invalid. Raises UnreadableMemory."""
    offsets = layout.offsets
    if not fields.count:
        return EMPTY
    if not fields.count <= min(_MOST_ENTRIES, fields.size):
        return WRONG
    stride = offsets.line_size
    data = memory.read(fields.entries, fields.count * stride)
    lines = _column(data, stride, offsets.line_number)
    positions = _positions(memory, layout, fields, data)
    if positions is None or len(positions) != len(lines) or not _ascend(positions):
        return WRONG
    if not any(lines) and (len(lines) == 1 or fields.source[0] <= 0):
        return EMPTY
    return Lines(positions, lines) if _are_lines(lines, *fields.source) else WRONG


def _are_lines(lines: tuple[int, ...], first: int, last: int | None) -> bool:
    """Return whether the lines fit an iseq whose source is from ``first`` to ``last``.

    A column with other data has many zeros, or numbers out of range. About twelve of
    100,000 iseqs of the standard library had lines out of range, by at most 4. In 2.7
    up to a third of the lines are 0. An ``eval`` may begin at line 0 or before; its
    lines are not checked.
    """
    known = [line for line in lines if line]
    if first <= 0:
        return True
    if len(lines) - len(known) > max(2, len(lines) // 3):
        return False
    if last is None:
        return True
    return all(first - _SLACK <= line <= last + _SLACK for line in known)


def _column(data: bytes, stride: int, offset: int) -> tuple[int, ...]:
    """Return the 4-byte numbers at ``offset`` of each entry."""
    words = memoryview(data[: len(data) // 4 * 4]).cast("I")
    return tuple(words[offset // 4 :: stride // 4].tolist())


def _positions(
    memory: Memory, layout: Layout, fields: LineFields, entries: bytes
) -> tuple[int, ...] | None:
    kind, offsets = layout.traits.line_table, layout.offsets
    if kind is LineTable.POSITION_IN_ENTRY and offsets.line_position is not None:
        return _column(entries, offsets.line_size, offsets.line_position)
    if fields.positions:
        data = memory.read(fields.positions, 4 * fields.count)
        return tuple(memoryview(data).cast("I").tolist())
    if kind is LineTable.SUCCINCT and fields.index:
        return _succinct(memory, fields.index, fields.count, fields.size)
    if fields.count == 1:
        return (0,)
    return None


def _succinct(
    memory: Memory, address: int, count: int, size: int
) -> tuple[int, ...] | None:
    """Return the positions in a ``succ_index_table``.

    Positions below 54 are those where the rank in the immediate part increases. Above,
    each set bit of a block is a position. The ranks of blocks are not needed.
    """
    positions = min(size, _IMMEDIATE_POSITIONS)
    words = -(-positions // _IMMEDIATE_ENTRIES)
    data = memory.read(address, 8 * words)
    found = _immediate(struct.unpack(f"={words}Q", data), count)
    if len(found) < count and size > _IMMEDIATE_POSITIONS:
        blocks = -(-(size + 1 - _IMMEDIATE_POSITIONS) // _BLOCK_POSITIONS)
        start = address + 8 * _IMMEDIATE_WORDS
        for block in range(blocks):
            data = memory.read(start + block * _BLOCK.size, _BLOCK.size)
            base = _IMMEDIATE_POSITIONS + block * _BLOCK_POSITIONS
            found += _bits(data, base, count - len(found))
            if len(found) == count:
                break
    return tuple(found) if len(found) == count else None


def _immediate(words: tuple[int, ...], most: int) -> list[int]:
    """Return the positions in the immediate part, as far as the iseq needs it."""
    found: list[int] = []
    for place, word in enumerate(words):
        for entry in range(_IMMEDIATE_ENTRIES):
            if len(found) < most and word >> (7 * entry) & 0x7F > len(found):
                found.append(place * _IMMEDIATE_ENTRIES + entry)
    return found


def _bits(data: bytes, base: int, most: int) -> list[int]:
    """Return the positions of a block's bits; ``base`` is the first position."""
    found: list[int] = []
    for place, word in enumerate(_BLOCK.unpack(data)[2:]):
        bits = word
        while bits and len(found) < most:
            low = bits & -bits
            found.append(base + 64 * place + low.bit_length() - 1)
            bits ^= low
    return found


def _ascend(positions: tuple[int, ...]) -> bool:
    return all(one < other for one, other in pairwise(positions))
