"""Where an instruction sequence has its code, names and lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rbtrace_py.rubyvm.calibration.given import (
    Found,
    Given,
    View,
    failed,
    offset_where,
    sure,
)
from rbtrace_py.rubyvm.calibration.objects import T_ARRAY, Strings
from rbtrace_py.rubyvm.layout import LineTable
from rbtrace_py.rubyvm.roots import is_pointer, read_array

T_IMEMO = 0x1A
_TYPE = 0x1F
_BODY = 512
_COUNTS = (3, 7, 12, 25)
"""Lines in the bodies of the script's methods ``lines_…``."""
_IMMEDIATE = 54
"""Positions in the first part of the succinct index: 6 words of 9 entries."""


@dataclass(slots=True)
class Iseqs:
    """What was found: addresses by name, and the offsets in them."""

    addresses: dict[str, int]
    bodies: dict[str, int]
    found: Found
    kind: int = 0
    """Of the imemo."""
    first_line_is_fixnum: bool = False
    line_table: LineTable = LineTable.SUCCINCT


def imemo_kind(view: View, address: int) -> int | None:
    """Kind of the imemo at ``address``, None if there is none."""
    if not is_pointer(address):
        return None
    flags = view.word(address)
    if flags & _TYPE != T_IMEMO:
        return None
    return flags >> 12 & 15


class IseqSearch:
    """Finds the fields of instruction sequences."""

    def __init__(self, view: View, given: Given, strings: Strings) -> None:
        self.view = view
        self.given = given
        self.strings = strings

    def run(self) -> Iseqs:
        """Find all; raises UnknownRuby."""
        addresses, kind = self._addresses()
        self.lines = [addresses[f"lines_{count}"] for count in _COUNTS]
        offset = self._body(addresses)
        bodies = {name: self.view.word(at + offset) for name, at in addresses.items()}
        self.result = Iseqs(addresses, bodies, {"iseq_body": offset}, kind)
        self.bodies = bodies
        self.line_bodies = [bodies[f"lines_{count}"] for count in _COUNTS]
        self._names()
        self._numbers()
        self._parents()
        self._line_table()
        self._call_data()
        return self.result

    def _addresses(self) -> tuple[dict[str, int], int]:
        """The imemo that each RubyVM::InstructionSequence wraps, and their kind."""
        wrappers = {
            name.removeprefix("iseq_"): value
            for name, value in self.given.values.items()
            if name.startswith("iseq_")
        }
        for offset in range(16, 56, 8):
            direct = {n: self.view.word(v + offset) for n, v in wrappers.items()}
            nested = {n: self.view.word(at) for n, at in direct.items()}
            for found in (direct, nested):
                kinds = {imemo_kind(self.view, at) for at in found.values()}
                kind = kinds.pop()
                if kind is not None and not kinds:
                    return found, kind
        raise failed("instruction sequences were not found")

    def _body(self, addresses: dict[str, int]) -> int:
        """The pointer to where the label is."""
        label = offset_where(
            64,
            8,
            self.lines,
            lambda i, at: self._text_in(self.view.word(at), f"lines_{_COUNTS[i]}"),
        )
        return sure(label, "the body of an instruction sequence")

    def _text_in(self, body: int, text: str) -> bool:
        wanted = text.encode()
        return any(
            self.strings.is_text(word, wanted)
            for _, word in self.view.pointers(body, 24)
        )

    def _text_at(self, *texts: str) -> Callable[[int, int], bool]:
        """A test for a String that is one of ``texts``; {} in them is the count."""

        def test(i: int, at: int) -> bool:
            value = self.view.word(at)
            return any(
                self.strings.is_text(value, text.format(_COUNTS[i]).encode())
                for text in texts
            )

        return test

    def _names(self) -> None:
        found, bodies = self.result.found, self.line_bodies
        names = ("lines_{}", "RbtraceHost#lines_{}")
        # In the label of a block there is more than in what it is in.
        block = [self.bodies["outer"]]
        blocks = ("block in nested", "block in RbtraceHost#nested")
        found["body_label"] = sure(
            offset_where(_BODY, 8, block, self._text_at(*blocks)), "labels"
        )
        found["body_base_label"] = sure(
            offset_where(_BODY, 8, block, self._text_at("nested")), "base labels"
        )
        for name in ("body_label", "body_base_label"):
            places = [body + found[name] for body in bodies]
            if not all(self._text_at(*names)(i, at) for i, at in enumerate(places)):
                raise failed("the labels are not the same in methods and in blocks")
        path = offset_where(_BODY, 8, bodies, self._is_path)
        found["body_path"] = sure(path, "paths")

    def _is_path(self, i: int, at: int) -> bool:
        """A String, or from 2.5 on an Array of the path and the real path."""
        value, wanted = self.view.word(at), f"/rbtrace/lines_{_COUNTS[i]}.rb".encode()
        if not is_pointer(value):
            return False
        if self.view.word(value) & _TYPE == T_ARRAY:
            parts = read_array(self.view.memory, value, 2)
            return bool(parts) and self.strings.is_text(parts[0], wanted)
        return self.strings.is_text(value, wanted)

    def _numbers(self) -> None:
        view, found, bodies = self.view, self.result.found, self.line_bodies
        firsts = [70_000 + 1000 * count for count in _COUNTS]
        line = offset_where(
            _BODY, 8, bodies, lambda i, at: view.word(at) == 2 * firsts[i] + 1
        )
        if line is None:
            line = offset_where(
                _BODY, 4, bodies, lambda i, at: view.u32(at) == firsts[i]
            )
        else:
            self.result.first_line_is_fixnum = True
        found["body_first_line"] = sure(line, "first lines")
        kinds = {"top_1": 0, "top_2": 0, "recurse": 1, "nested": 1, "outer": 2}
        kinds.update({f"lines_{count}": 1 for count in _COUNTS}, inner=2)
        wanted = list(kinds.values())
        typed = [self.bodies[name] for name in kinds]
        kind = offset_where(_BODY, 4, typed, lambda i, at: view.u32(at) == wanted[i])
        found["body_type"] = sure(kind, "types")
        sizes = [self.given.sizes[f"lines_{count}"] for count in _COUNTS]
        size = offset_where(_BODY, 4, bodies, lambda i, at: view.u32(at) == sizes[i])
        found["body_size"] = sure(size, "sizes")

    def _parents(self) -> None:
        """An inner block is in an outer one, and both are in the method."""
        view, found, at = self.view, self.result.found, self.result.addresses
        blocks = [self.bodies["outer"], self.bodies["inner"]]
        parents = [at["nested"], at["outer"]]
        found["body_parent"] = sure(
            offset_where(
                _BODY, 8, blocks, lambda i, place: view.word(place) == parents[i]
            ),
            "the parents of blocks",
        )
        found["body_local"] = sure(
            offset_where(
                _BODY, 8, blocks, lambda _, place: view.word(place) == at["nested"]
            ),
            "the methods of blocks",
        )

    def _line_table(self) -> None:
        """Entries of a line each, how many there are, and the index to them."""
        found = self.result.found
        for table in range(0, _BODY, 8):
            entries = [self.view.word(body + table) for body in self.line_bodies]
            if not all(map(is_pointer, entries)):
                continue
            for count in range(table + 8, min(table + 40, _BODY), 4):
                shape = self._entries(entries, count)
                if shape is not None:
                    found["body_lines"], found["body_line_count"] = table, count
                    found["line_size"], found["line_number"] = shape
                    self._index(table, count)
                    return
        raise failed("the table of lines was not found")

    def _entries(self, tables: Sequence[int], count: int) -> tuple[int, int] | None:
        """Size of an entry, and the line's place in it, if there are such entries."""
        sizes = [self.view.u32(body + count) for body in self.line_bodies]
        if not all(
            n <= size <= 4 * n + 4 for n, size in zip(_COUNTS, sizes, strict=True)
        ):
            return None
        for entry in (8, 12, 16, 20, 24):
            for inside in range(0, entry, 4):
                if all(
                    self._has_lines(n, table, size, entry, inside)
                    for n, table, size in zip(_COUNTS, tables, sizes, strict=True)
                ):
                    return entry, inside
        return None

    def _has_lines(
        self, n: int, table: int, size: int, entry: int, inside: int
    ) -> bool:
        """Do the entries have the lines of the method's instructions, in order?"""
        lines = [self.view.u32(table + i * entry + inside) for i in range(size)]
        wanted = sorted({line for _, line in self.given.places[f"lines_{n}"]})
        return sorted(set(lines)) == wanted and lines == sorted(lines)

    def _index(self, table: int, count: int) -> None:
        """The positions of the entries: an index since 2.6, an array in 2.5, inside."""
        found = self.result.found
        for offset in range(table + 8, table + 48, 8):
            indexes = [self.view.word(body + offset) for body in self.line_bodies]
            if not all(map(is_pointer, indexes)):
                continue
            if self._is_succinct(indexes):
                found["body_line_index"] = offset
                # The array of positions stands between: it is freed when the index
                # is made, so that there is nothing but its place.
                if count - table == 16:
                    found["body_line_positions"] = table + 8
                return
            if self._is_positions(indexes):
                found["body_line_positions"] = offset
                self.result.line_table = LineTable.POSITIONS_ARRAY
                return
        found["line_position"] = 0
        self.result.line_table = LineTable.POSITION_IN_ENTRY

    def _is_succinct(self, indexes: Sequence[int]) -> bool:
        """Does looking up each position in the index give the line it is on?"""
        return all(
            self._line_at(n, index, position) == line
            for n, index in zip(_COUNTS, indexes, strict=True)
            for position, line in self.given.places[f"lines_{n}"]
            if position < _IMMEDIATE
        )

    def _line_at(self, n: int, index: int, position: int) -> int | None:
        """struct succ_index_table (iseq.c): ranks of 7 bits, 9 in a word."""
        found = self.result.found
        word = self.view.word(index + position // 9 * 8)
        rank = word >> position % 9 * 7 & 0x7F
        body = self.bodies[f"lines_{n}"]
        if not 0 < rank <= self.view.u32(body + found["body_line_count"]):
            return None
        entry = self.view.word(body + found["body_lines"])
        entry += (rank - 1) * found["line_size"] + found["line_number"]
        return self.view.u32(entry)

    def _is_positions(self, arrays: Sequence[int]) -> bool:
        """Is it an array of the positions at which lines begin, and maybe more?"""
        for n, array in zip(_COUNTS, arrays, strict=True):
            count = self.view.u32(
                self.bodies[f"lines_{n}"] + self.result.found["body_line_count"]
            )
            numbers = {self.view.u32(array + 4 * i) for i in range(min(count, 1000))}
            if not {at for at, _ in self.given.places[f"lines_{n}"]} <= numbers:
                return False
        return True

    def _call_data(self) -> None:
        """Call sites in the code's order (2.7 and later); earlier ones have none."""
        ids = [symbol >> 8 for symbol in self.given.named("call_")]
        for offset, table in self.view.pointers(self.bodies["calls"], _BODY // 8):
            for size in range(8, 128, 8):
                sites = [table + i * size for i in range(len(ids))]
                words = [self.view.word(site) for site in sites]
                packed = [word >> 32 if word & 1 else 0 for word in words]
                mid = offset_where(
                    size, 8, sites, lambda i, at: self.view.word(at) == ids[i]
                )
                if packed == ids or mid is not None:
                    self.result.found.update(body_call_data=offset, call_size=size)
                    if mid is not None:
                        self.result.found["call_mid"] = mid
                    return
