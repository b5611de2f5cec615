"""Line tables, as CRuby's iseq.c lays them out, and malformed."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import pytest

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.rubyvm.layout import Layout, LineTable
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from rbtrace_py.rubyvm.lines import EMPTY, WRONG, LineFields, Lines, read_lines

ENTRIES, POSITIONS, INDEX = 0x10000, 0x200000, 0x400000


class Bytes:
    """Memory with a few places."""

    def __init__(self, places: dict[int, bytes]) -> None:
        self.places = places

    def read(self, address: int, size: int) -> bytes:
        for start, data in self.places.items():
            if start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        raise UnreadableMemory("not there")

    def gather(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        return [self.read(*pair) for pair in ranges]


def index_of(positions: list[int]) -> bytes:
    """A succ_index_table: ranks of 54 positions, then blocks of 512 bits."""
    words, found = [0] * 6, 0
    for position in range(54):
        found += position in positions
        words[position // 9] |= found << (7 * (position % 9))
    made = struct.pack("=6Q", *words)
    last = max(positions)
    for start in range(54, last + 1, 512):
        rank = sum(position < start for position in positions)
        bits = sum(1 << (p - start) for p in positions if start <= p < start + 512)
        parts = [bits >> (64 * word) & (1 << 64) - 1 for word in range(8)]
        made += struct.pack("=IxxxxQ8Q", rank, 0, *parts)
    return made


def entries(layout: Layout, lines: list[int], positions: list[int]) -> bytes:
    made = bytearray(len(lines) * layout.offsets.line_size)
    for index, line in enumerate(lines):
        start = index * layout.offsets.line_size
        struct.pack_into("=i", made, start + layout.offsets.line_number, line)
        if layout.offsets.line_position is not None:
            at = start + layout.offsets.line_position
            struct.pack_into("=I", made, at, positions[index])
    return bytes(made)


def read(
    version: str,
    lines: list[int],
    positions: list[int],
    size: int,
    count: int,
    source: tuple[int, int | None] = (0, None),
) -> Lines:
    layout = layout_from(table_for(version), version)
    places = {
        ENTRIES: entries(layout, lines, positions),
        POSITIONS: struct.pack(f"={len(positions)}I", *positions),
        INDEX: index_of(positions),
    }
    kind = layout.traits.line_table
    fields = LineFields(
        entries=ENTRIES,
        positions=POSITIONS if kind is LineTable.POSITIONS_ARRAY else 0,
        count=count,
        index=INDEX if kind is LineTable.SUCCINCT else 0,
        size=size,
        source=source,
    )
    return read_lines(Bytes(places), layout, fields)


@pytest.mark.parametrize("version", ["2.3.0", "2.5.0", "2.7.4", "3.1.2", "3.4.11"])
@pytest.mark.parametrize("size", [3, 53, 54, 55, 120, 566, 567, 3000])
def test_every_instruction_has_its_line(version: str, size: int) -> None:
    chance = random.Random(size)
    some = chance.sample(range(1, size), min(size - 1, max(1, size // 5)))
    positions = [0, *sorted(some)]
    lines = [chance.randint(1, 100_000) for _ in positions]
    table = read(version, lines, positions, size, len(lines))
    expected = [
        lines[max(i for i, start in enumerate(positions) if start <= position)]
        for position in range(size)
    ]
    assert [table.at(position) for position in range(size)] == expected


def test_a_line_of_nought_is_not_known() -> None:
    table = read("3.1.2", [7, 0, 9], [0, 4, 6], 10, 3)
    assert [table.at(place) for place in (3, 4, 5, 6)] == [7, None, None, 9]
    assert Lines((2,), (7,)).at(1) is None


@pytest.mark.parametrize("count", [11, 1 << 20, 1 << 31])
def test_a_count_that_cannot_be_is_no_table(count: int) -> None:
    assert read("3.1.2", [7], [0], 10, count) is WRONG
    assert read("3.1.2", [7], [0], 10, 0) is EMPTY


@pytest.mark.parametrize(
    ("lines", "is_wrong"),
    [
        ([41, 42, 0, 49], False),
        ([41, 0, 0, 49], False),
        ([41, 43, 0, 0, 49, 49], False),
        ([41, 0, 0, 0], True),
        ([37, 54, 50], False),
        ([36, 50], True),
        ([41, 55], True),
    ],
)
def test_lines_that_are_not_of_the_source(lines: list[int], is_wrong: bool) -> None:
    """It goes from line 41 to 50; a few iseqs have lines beyond, by 4 at most."""
    found = read(
        "3.1.2", lines, [0, 2, 4, 6, 7, 8][: len(lines)], 10, len(lines), (41, 50)
    )
    assert (found is WRONG) == is_wrong
    assert (found.at(0) == lines[0]) != is_wrong


def test_an_index_of_wrong_positions_is_rejected() -> None:
    layout = layout_from(table_for("3.1.2"), "3.1.2")
    fields = LineFields(ENTRIES, 0, 2, INDEX, 10)
    made = entries(layout, [1, 2], [0, 1])
    memory = Bytes({ENTRIES: made, INDEX: index_of([3])})
    assert read_lines(memory, layout, fields) is WRONG
    none = read_lines(memory, layout, replace(fields, index=0))
    assert none is WRONG
