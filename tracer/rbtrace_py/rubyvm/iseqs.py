"""Facts about an iseq (``rb_iseq_t``): its names, path and lines."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import gathered
from rbtrace_py.rubyvm.consistency import Topic
from rbtrace_py.rubyvm.layout import Offsets
from rbtrace_py.rubyvm.lines import WRONG, LineFields, Lines, read_lines
from rbtrace_py.rubyvm.values import LONGEST_NAME, Values

_MOST_WORDS = 1 << 24
_MOST_PARENTS = 512
_TEXT_CACHED = 1 << 25
"""Characters of the names and paths of all iseqs together."""
_LINES_CACHED = 1 << 21
"""Entries of all tables of lines together."""
_INTERNAL = "<internal:"


class IseqKind(IntEnum):
    """``enum iseq_type`` (vm_core.h), the same since 2.1 up to EVAL and MAIN."""

    TOP = 0
    METHOD = 1
    BLOCK = 2
    CLASS = 3
    RESCUE = 4
    ENSURE = 5
    EVAL = 6
    MAIN = 7
    PLAIN = 8


_SHOWN_AS_OUTER = (IseqKind.RESCUE, IseqKind.ENSURE, IseqKind.EVAL)


_SELF_LOCAL = (IseqKind.TOP, IseqKind.METHOD, IseqKind.CLASS, IseqKind.MAIN)
"""Their local iseq is themselves (set_relation of iseq.c)."""

_LABELED_AS_PATH = (_INTERNAL, "<compiled>")
"""Iseqs of such a path may have it as their label."""


_CONSTANT_LABELS = {
    IseqKind.TOP: "<top (required)>",
    IseqKind.MAIN: "<main>",
}
"""rb_iseq_new_top and rb_iseq_new_main (iseq.c)."""


class Iseq:
    """One iseq. ``begin`` and ``end`` are the addresses of its instructions."""

    __slots__ = (
        "_fields",
        "_lines",
        "address",
        "base_label",
        "begin",
        "body",
        "body_bytes",
        "call_data",
        "end",
        "fingerprint",
        "kind",
        "label",
        "local",
        "parent",
        "path",
    )

    def __init__(
        self, address: int, kind: int, code: tuple[int, int], fingerprint: bytes
    ) -> None:
        self.address = address
        self.kind = kind
        self.begin, self.end = code
        self.fingerprint = fingerprint
        # Where its body is apart (2.3 and later): address and size, and what is there.
        self.body_bytes = fingerprint[8:]
        self.body = int.from_bytes(fingerprint[:8], "little"), len(self.body_bytes)
        self.path = self.label = self.base_label = ""
        self.local = self.parent = self.call_data = 0
        self._fields: LineFields | None = None
        self._lines: Lines | None = None

    @property
    def is_internal(self) -> bool:
        """Was it compiled into Ruby itself (``<internal:kernel>``)?"""
        return self.path.startswith(_INTERNAL)

    @property
    def is_handler(self) -> bool:
        """Is it the body of a ``rescue`` or an ``ensure``?"""
        return self.kind in (IseqKind.RESCUE, IseqKind.ENSURE)

    @property
    def has_lines(self) -> bool:
        """Has its table of lines been read?"""
        return self._lines is not None

    @property
    def has_wrong_lines(self) -> bool:
        """Was its table read, and refused?"""
        return self._lines is WRONG

    @property
    def line_count(self) -> int:
        """The number of entries of an iseq's table of lines that are kept."""
        return 0 if self._lines is None else len(self._lines.lines)

    def forget_lines(self) -> None:
        """They can be read again."""
        self._lines = None

    def holds(self, pc: int) -> bool:
        """Can a frame of it have this pc?"""
        return self.begin <= pc <= self.end and pc & 7 == 0

    def line(self, values: Values, pc: int) -> int | None:
        """Return the line a frame with this pc is on, None if not known.

        The pc is that of the next instruction (calc_lineno of vm_backtrace.c).
        """
        if self._lines is None:
            if self._fields is None:
                return None
            self._lines = read_lines(values.memory, values.layout, self._fields)
        return self._lines.at(max((pc - self.begin) // 8 - 1, 0))


class Iseqs:
    """Reads iseqs by address, and keeps them; at most ``most``.

    fresh: addresses of those that were read, where somebody wants to know
    replaced: how many were forgotten, as others were found at their addresses
    """

    def __init__(self, values: Values, most: int = 1 << 15) -> None:
        self._values = values
        self._offsets = values.offsets
        self._span = _span(values.offsets)
        self._most = most
        self._known: dict[int, Iseq] = {}
        self.fresh: set[int] | None = None
        self._text = self._lines = self.replaced = 0

    def line(self, iseq: Iseq, pc: int) -> int | None:
        """Return the line a frame with this pc is on, None if not known."""
        is_new = not iseq.has_lines
        line = iseq.line(self._values, pc)
        if is_new:
            self._lines += iseq.line_count
            self._values.consistency.add(Topic.LINES, not iseq.has_wrong_lines)
            if self._lines > _LINES_CACHED:
                self._forget_lines()
                iseq.forget_lines()
        return line

    def _forget_lines(self) -> None:
        for iseq in self._known.values():
            iseq.forget_lines()
        self._lines = 0

    def get(self, address: int) -> Iseq | None:
        """Return the iseq at ``address``, None if there is none."""
        known = self._known.get(address)
        return known if known is not None else self._load(address)

    def renew(self, address: int) -> bool:
        """Forget the iseq if another one is at its address now.

        Returns:
            Whether it was forgotten.
        """
        iseq = self._known.get(address)
        if iseq is None or not self._gone(iseq):
            return False
        del self._known[address]
        self.replaced += 1
        return True

    def revalidate(self) -> bool:
        """Read again what tells iseqs apart; return whether one was replaced.

        They are collected as garbage, and others come to be at their addresses.
        """
        known = list(self._known.values())
        if self._offsets.iseq_body is None:
            gone = [iseq for iseq in known if self._gone(iseq)]
        else:
            gone = self._replaced(known, self._offsets.iseq_body)
        for iseq in gone:
            del self._known[iseq.address]
        return bool(gone)

    def are_unchanged(self, addresses: Iterable[int]) -> bool:
        """Have those of these iseqs that are known the same bodies still?"""
        known = [self._known[one] for one in addresses if one in self._known]
        found = gathered(self._values.memory, [iseq.body for iseq in known])
        return list(found) == [iseq.body_bytes for iseq in known]

    def _replaced(self, known: list[Iseq], body_at: int) -> list[Iseq]:
        """Return those at whose addresses is something else, all read together."""
        places = [(iseq.address, body_at + 8) for iseq in known]
        places += [iseq.body for iseq in known]
        found = list(gathered(self._values.memory, places))
        return [
            iseq
            for iseq, head, body in zip(
                known, found[: len(known)], found[len(known) :], strict=True
            )
            if head is None
            or body is None
            or not self._is_iseq(head)
            or head[body_at:] + body != iseq.fingerprint
        ]

    def _gone(self, iseq: Iseq) -> bool:
        try:
            return self._fingerprint(iseq.address) != iseq.fingerprint
        except UnreadableMemory:
            return True

    def _fingerprint(self, address: int) -> bytes:
        """The body's address and its first part; b"" if it is no iseq."""
        offsets = self._offsets
        if not self._values.is_object(address):
            return b""
        if offsets.iseq_body is None:
            return self._values.memory.read(address, self._span)
        head = self._values.memory.read(address, offsets.iseq_body + 8)
        if not self._is_iseq(head):
            return b""
        body = head[offsets.iseq_body :]
        place = int.from_bytes(body, "little")
        return body + self._values.memory.read(place, self._span)

    def _is_iseq(self, head: bytes) -> bool:
        kind = self._values.traits.iseq_imemo
        flags = int.from_bytes(head[:8], "little")
        return kind is None or self._values.imemo_kind_of(flags) == kind

    def _load(self, address: int) -> Iseq | None:
        offsets = self._offsets
        data = self._fingerprint(address)
        body = data if offsets.iseq_body is None else data[8:]
        if not body:
            return None
        kind, size = _u32(body, offsets.body_type), _u32(body, offsets.body_size)
        begin = _u64(body, offsets.body_encoded)
        if not 0 < size <= _MOST_WORDS or begin & 7 or begin < 4096:
            return None
        iseq = Iseq(address, kind, (begin, begin + 8 * size), data)
        label, path = self._label(body), self._path(_u64(body, offsets.body_path))
        if label is None or path is None:
            return None
        iseq.label, iseq.path = label, path
        iseq.parent = _optional(body, offsets.body_parent)
        iseq.local = _optional(body, offsets.body_local)
        iseq.base_label = self._base_label(body, iseq)
        iseq.call_data = _optional(body, offsets.body_call_data)
        # Those live as long as it does: what is known of them and is so now, stays so.
        self.renew(iseq.local)
        self.renew(iseq.parent)
        if not self._is_sound(iseq):
            return None
        iseq._fields = self._line_fields(body, size)
        self._text += len(iseq.label) + len(iseq.path) + len(iseq.base_label)
        if len(self._known) >= self._most or self._text > _TEXT_CACHED:
            self._forget_lines()
            self._known.clear()
            self._text = 0
        self._known[address] = iseq
        if self.fresh is not None:
            self.fresh.add(address)
        return iseq

    def _is_sound(self, iseq: Iseq) -> bool:
        """Does what was read of it go together, as in every iseq?

        So that a layout with a wrong offset gives no frame instead of a wrong one.
        """
        if iseq.kind > IseqKind.PLAIN:
            return False
        if not iseq.path.startswith(_LABELED_AS_PATH) and not _is_extension(iseq):
            is_path = iseq.path != iseq.base_label
            self._values.consistency.add(Topic.PATHS, is_path)
        if iseq.kind == IseqKind.BLOCK:
            return self._is_sound_block(iseq)
        if iseq.kind == IseqKind.METHOD and iseq.label != iseq.base_label:
            return False
        has_local = self._offsets.body_local is not None
        return (
            not has_local or iseq.kind not in _SELF_LOCAL or iseq.local == iseq.address
        )

    def _is_sound_block(self, iseq: Iseq) -> bool:
        """``block in LABEL`` of its local iseq, within a parent (make_name_for_block
        of compile.c)."""
        label, base, offsets = iseq.label, iseq.base_label, self._offsets
        is_whole = max(len(label), len(base)) < LONGEST_NAME
        if is_whole and not (label.startswith("block ") and label.endswith(f" {base}")):
            return False
        if offsets.body_local is None or offsets.body_parent is None:
            return True
        if iseq.parent == iseq.local and label.startswith("block ("):
            return False
        return self._is_there(iseq.local) and self._is_there(iseq.parent)

    def _is_there(self, address: int) -> bool:
        """Is there an iseq at ``address``?"""
        return address in self._known or bool(self._fingerprint(address))

    def _label(self, body: bytes) -> str | None:
        """Those of Ruby's own are constants of the program, which a core may lack.

        None for what is no String.
        """
        try:
            value = _u64(body, self._offsets.body_label)
            return self._values.string(value, LONGEST_NAME)
        except UnreadableMemory:
            kind = _u32(body, self._offsets.body_type)
            if kind not in _CONSTANT_LABELS:
                raise
            return _CONSTANT_LABELS[IseqKind(kind)]

    def _base_label(self, body: bytes, iseq: Iseq) -> str:
        """The label of the local iseq (iseq_location_setup of iseq.c)."""
        try:
            value = _u64(body, self._offsets.body_base_label)
            return self._values.string(value, LONGEST_NAME) or ""
        except UnreadableMemory:
            if iseq.local in (0, iseq.address):
                return iseq.label
            data = self._fingerprint(iseq.local)
            local = data if self._offsets.iseq_body is None else data[8:]
            if not local:
                raise
            return self._label(local) or ""

    def _path(self, value: int) -> str | None:
        """``pathobj`` is a String, or from 2.5 on an Array of path and real path.

        None for what is neither.
        """
        text = self._values.string(value)
        if text is None:
            first = self._values.element(value, 0)
            text = None if first is None else self._values.string(first)
        return text

    def _line_fields(self, body: bytes, size: int) -> LineFields:
        offsets = self._offsets
        return LineFields(
            entries=_u64(body, offsets.body_lines),
            positions=_optional(body, offsets.body_line_positions),
            count=_u32(body, offsets.body_line_count),
            index=_optional(body, offsets.body_line_index),
            size=size,
            source=(self._first_line(body), self._last_line(body)),
        )

    def _first_line(self, body: bytes) -> int:
        """``location.first_lineno``: a Fixnum up to 3.1, then an int."""
        if self._values.traits.first_line_is_fixnum:
            return _signed(_u64(body, self._offsets.body_first_line), 64) >> 1
        return _signed(_u32(body, self._offsets.body_first_line), 32)

    def _last_line(self, body: bytes) -> int | None:
        """None where the compiler did not say: 0 or -1."""
        offset = self._offsets.body_last_line
        last = 0 if offset is None else _u32(body, offset)
        return last if 0 < last < 1 << 31 else None

    def local_kind(self, iseq: Iseq) -> int | None:
        """Return the kind of the iseq whose local variables it shares."""
        local = self.get(iseq.local) if iseq.local else iseq
        return None if local is None else local.kind

    def shown_for(self, iseq: Iseq) -> tuple[Iseq, int]:
        """Return the iseq whose label 3.4 shows for a frame, and how many blocks
        deep the frame is in it (calculate_iseq_label of vm_backtrace.c)."""
        for _ in range(_MOST_PARENTS):
            outer = self.get(iseq.parent) if iseq.parent else None
            if iseq.kind not in _SHOWN_AS_OUTER or outer is None:
                break
            iseq = outer
        if iseq.kind not in (IseqKind.BLOCK, IseqKind.PLAIN) or not iseq.parent:
            return iseq, 0
        return self._out_of_blocks(iseq)

    def _out_of_blocks(self, iseq: Iseq) -> tuple[Iseq, int]:
        local, level = iseq.local, 0
        for _ in range(_MOST_PARENTS):
            if iseq.address == local or not iseq.parent:
                break
            level += iseq.kind == IseqKind.BLOCK
            outer = self.get(iseq.parent)
            if outer is None:
                break
            iseq = outer
        return iseq, max(level, 1)


def _is_extension(iseq: Iseq) -> bool:
    """Is it of the frame that stands there while an extension is loaded?

    It has that one's path for a label, too (rb_vm_push_frame_fname of vm.c); of a
    file's frame the label is a constant.
    """
    return iseq.kind == IseqKind.TOP and not iseq.label.startswith("<")


def _span(offsets: Offsets) -> int:
    """Return how much of a body is read: up to the last field that is used."""
    names = [name for name in Offsets.__slots__ if name.startswith("body_")]
    return max(getattr(offsets, name) or 0 for name in names) + 8


def _u32(data: bytes, offset: int) -> int:
    value: int = struct.unpack_from("=I", data, offset)[0]
    return value


def _u64(data: bytes, offset: int) -> int:
    value: int = struct.unpack_from("=Q", data, offset)[0]
    return value


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _optional(data: bytes, offset: int | None) -> int:
    return 0 if offset is None else _u64(data, offset)
