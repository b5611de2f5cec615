"""Facts about an iseq (``rb_iseq_t``): its names, path, and lines."""

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
"""Maximum characters of the names and paths of all iseqs."""
_LINES_CACHED = 1 << 21
"""Maximum entries of all line tables."""
_INTERNAL = "<internal:"


class IseqKind(IntEnum):
    """``enum iseq_type`` (vm_core.h), unchanged since 2.1 up to EVAL and MAIN."""

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
"""Kinds whose local iseq is the iseq itself (set_relation of iseq.c)."""

_LABELED_AS_PATH = (_INTERNAL, "<compiled>")
"""Paths with which iseqs may have the path as their label."""


_CONSTANT_LABELS = {
    IseqKind.TOP: "<top (required)>",
    IseqKind.MAIN: "<main>",
}
"""Labels set by rb_iseq_new_top and rb_iseq_new_main (iseq.c)."""


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
        # If its body is separate (2.3 and later): its address and size, and its bytes.
        self.body_bytes = fingerprint[8:]
        self.body = int.from_bytes(fingerprint[:8], "little"), len(self.body_bytes)
        self.path = self.label = self.base_label = ""
        self.local = self.parent = self.call_data = 0
        self._fields: LineFields | None = None
        self._lines: Lines | None = None

    @property
    def is_internal(self) -> bool:
        """True if it was compiled into Ruby itself (``<internal:kernel>``)."""
        return self.path.startswith(_INTERNAL)

    @property
    def is_handler(self) -> bool:
        """True for the body of a ``rescue`` or an ``ensure``."""
        return self.kind in (IseqKind.RESCUE, IseqKind.ENSURE)

    @property
    def has_lines(self) -> bool:
        """True if its line table has been read."""
        return self._lines is not None

    @property
    def has_wrong_lines(self) -> bool:
        """True if its line table was read and rejected."""
        return self._lines is WRONG

    @property
    def line_count(self) -> int:
        """Number of cached entries of the line table."""
        return 0 if self._lines is None else len(self._lines.lines)

    def forget_lines(self) -> None:
        """Discard the line table; it can be read again."""
        self._lines = None

    def holds(self, pc: int) -> bool:
        """Return whether a frame of this iseq can have this pc."""
        return self.begin <= pc <= self.end and pc & 7 == 0

    def line(self, values: Values, pc: int) -> int | None:
        """Return the line of a frame with this pc, or None if unknown.

        The pc points to the next instruction (calc_lineno of vm_backtrace.c).
        """
        if self._lines is None:
            if self._fields is None:
                return None
            self._lines = read_lines(values.memory, values.layout, self._fields)
        return self._lines.at(max((pc - self.begin) // 8 - 1, 0))


class Iseqs:
    """Reads and caches iseqs by address, at most ``most``.

    Attributes:
        fresh: Addresses of newly read iseqs, if requested.
        replaced: Number of cached iseqs that were dropped because others were found at
            their addresses.
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
        """Return the line of a frame with this pc, or None if unknown."""
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
        """Return the iseq at ``address``, or None."""
        known = self._known.get(address)
        return known if known is not None else self._load(address)

    def renew(self, address: int) -> bool:
        """Drop the cached iseq if another one is at its address now.

        Returns:
            True if the cached iseq was dropped.
        """
        iseq = self._known.get(address)
        if iseq is None or not self._gone(iseq):
            return False
        del self._known[address]
        self.replaced += 1
        return True

    def revalidate(self) -> bool:
        """Reread the fingerprints of all iseqs; return whether one was replaced.

        Iseqs are garbage-collected, and others get their addresses.
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
        """Return whether the known ones of these iseqs have unchanged bodies."""
        known = [self._known[one] for one in addresses if one in self._known]
        found = gathered(self._values.memory, [iseq.body for iseq in known])
        return list(found) == [iseq.body_bytes for iseq in known]

    def _replaced(self, known: list[Iseq], body_at: int) -> list[Iseq]:
        """Return the iseqs at whose addresses is something else, read together."""
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
        """Return the body's address and its first part; b"" if it is not an iseq."""
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
        # These live as long as the iseq, so facts that are true now stay true.
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
        """Return whether the parts of an iseq are consistent.

        A layout with a wrong offset then gives no frame instead of a wrong one.
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
        """Check the label, ``block in LABEL`` of the local iseq, and the parent
        (make_name_for_block of compile.c)."""
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
        """Return whether there is an iseq at ``address``."""
        return address in self._known or bool(self._fingerprint(address))

    def _label(self, body: bytes) -> str | None:
        """Return the label; None if it is not a String.

        Labels of Ruby's own are constants of the program, which a core may lack.
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
        """Return the label of the local iseq (iseq_location_setup of iseq.c)."""
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
        """Return the path. ``pathobj`` is a String, or since 2.5 an Array of two paths.

        None if it is neither.
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
        """Return ``location.first_lineno``: a Fixnum up to 3.1, then an int."""
        if self._values.traits.first_line_is_fixnum:
            return _signed(_u64(body, self._offsets.body_first_line), 64) >> 1
        return _signed(_u32(body, self._offsets.body_first_line), 32)

    def _last_line(self, body: bytes) -> int | None:
        """Return the last line; None if the compiler did not record it (0 or -1)."""
        offset = self._offsets.body_last_line
        last = 0 if offset is None else _u32(body, offset)
        return last if 0 < last < 1 << 31 else None

    def local_kind(self, iseq: Iseq) -> int | None:
        """Return the kind of the iseq whose local variables it shares."""
        local = self.get(iseq.local) if iseq.local else iseq
        return None if local is None else local.kind

    def shown_for(self, iseq: Iseq) -> tuple[Iseq, int]:
        """Return the iseq whose label 3.4 shows for a frame, and the depth of blocks in
        it (calculate_iseq_label of vm_backtrace.c)."""
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
    """Return whether the iseq belongs to the frame of an extension being loaded.

    Its label is the extension's path (rb_vm_push_frame_fname of vm.c). The label of a
    file's frame is a constant.
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
