"""Reading back what ``programs/record.h`` keeps: groups and distributions."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from rbtrace_py.aggregate.histogram import (
    Distribution,
    FloatHistogram,
    Histogram,
    SignedHistogram,
)
from rbtrace_py.aggregate.results import Group, Key
from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import BUCKETS, KEY_TEXT, KEY_WHOLE, LONGEST_KEY, KeyKind
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.model.probes import (
    NIL_BOOL,
    NIL_FLOAT_BITS,
    NIL_INTEGER,
    Operand,
    OperandRole,
    OperandType,
)
from rbtrace_py.model.recorded_groups import By, RecordedValues

DENSE_SERIES = 8
"""Up to so many series get a whole histogram each (270 KB)."""

_GROUP = struct.Struct("<QQQq")
_BUCKETS_A_KEY = 256
_MOST_BUCKETS = 1 << 22
_MOST_KEYS_READY = 1 << 14
"""Up to so many groups there is memory for all of them from the start."""

UNREADABLE_KEY = "(unreadable)"

Cells = dict[tuple[int, int], tuple["array[int]", "array[int]"]]
"""Buckets of every group and their counts, by what the group is known by."""


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The form of a group's record.

    dense: as many series as ``series``, a whole histogram each; else groups
        and buckets as they are seen
    max_keys: groups with a key that are kept, of all series together; beside
        them each series has one for the rest
    """

    values: RecordedValues
    by: By
    dense: bool
    series: int
    max_keys: int

    def flags(self) -> dict[str, int]:
        return {
            "VALUES": int(self.values),
            "BY": int(self.by),
            "DENSE": int(self.dense),
        }

    def maps(self) -> dict[str, MapSpec]:
        array, hash_ = sys_.MAP_TYPE_ARRAY, sys_.MAP_TYPE_HASH
        made = {"totals": MapSpec(array, 4, 8, self.series, sys_.F_MMAPABLE)}
        if self.dense and self.values:
            cells = self.series * BUCKETS
            made["histogram"] = MapSpec(array, 4, 8, cells, sys_.F_MMAPABLE)
        if self.dense:
            return made
        key_size = 8 + (KEY_TEXT if self.by is By.TEXT else 8)
        lazily = sys_.F_NO_PREALLOC
        groups = self.series if self.by is By.NOTHING else self.max_keys
        ready = groups <= _MOST_KEYS_READY
        made["groups"] = MapSpec(
            hash_, key_size, _GROUP.size, groups, 0 if ready else lazily
        )
        if self.by is not By.NOTHING:
            made["others"] = MapSpec(
                array, 4, _GROUP.size, self.series, sys_.F_MMAPABLE
            )
        if self.by is By.TEXT:
            made["texts"] = MapSpec(hash_, 16, KEY_WHOLE, groups, lazily)
            made["blank"] = MapSpec(array, 4, KEY_WHOLE, 1)
        if self.values:
            cells = min(self.max_keys * _BUCKETS_A_KEY + BUCKETS, _MOST_BUCKETS)
            made["buckets"] = MapSpec(hash_, 16, 8, cells, lazily)
        return made


class GroupReader:
    """The recorded groups of a session's programs.

    maps: those of ``Shape.maps``, which the programs share
    series: numbers of the series by name; more may come
    key_operand: the ``--by`` operand of a series
    """

    def __init__(
        self,
        maps: Mapping[str, Map],
        shape: GroupShape,
        series: Mapping[str, int],
        key_operand: Callable[[int], Operand | None],
    ) -> None:
        self._maps = maps
        self._shape = shape
        self._series = series
        self._key_operand = key_operand

    def reserve_other(self, series: int) -> None:
        """Ready the row of a series for what comes after ``--max-keys``."""
        if self._shape.by is By.NOTHING:
            return
        # No group of the kernel's is born as late as this.
        fresh = _GROUP.pack((1 << 63) + series, 0, 0, 0)
        self._maps["others"].put(series.to_bytes(4, "little"), fresh)

    def groups(self) -> list[Group]:
        """A snapshot; in the order of the series, then as the kernel has them."""
        found = list(self._dense() if self._shape.dense else self._sparse())
        return sorted(found, key=lambda group: self._series[group.series])

    def _dense(self) -> Iterator[Group]:
        totals = self._maps["totals"].view()
        for name, series in self._series.items():
            total = _u64(totals[8 * series : 8 * series + 8])
            if not self._shape.values:
                yield Group(name, None, total)
                continue
            stride = BUCKETS * 8
            cells = self._maps["histogram"].view()
            histogram = Histogram.from_dense(
                cells[series * stride : (series + 1) * stride]
            )
            yield Group(name, None, histogram.count, total, histogram)

    def _sparse(self) -> Iterator[Group]:
        cells = self._cells()
        texts = self._texts()
        names = {number: name for name, number in self._series.items()}
        for key, value in self._maps["groups"].items():
            series, kind = struct.unpack_from("<II", key)
            if self._shape.by is By.NOTHING:
                yield self._group(names.pop(series), value, cells)
                continue
            group = self._group(names[series], value, cells)
            if group.count:
                text = texts.get(value[:16])
                found, cut = self._key(series, kind, key[8:], text)
                yield replace(
                    group,
                    key=found,
                    truncated=cut,
                    raw=key[4:],
                    key_role=self._key_role(series),
                )
        if self._shape.by is By.NOTHING:
            for name in names.values():
                yield Group(name, None, 0, 0, self._distribution({}))
            return
        others = self._maps["others"].view()
        for series, name in names.items():
            value = others[_GROUP.size * series : _GROUP.size * (series + 1)]
            group = self._group(name, value, cells)
            if group.count:
                yield replace(group, is_other=True)

    def _group(self, name: str, value: bytes, cells: Cells) -> Group:
        """Read a ``struct group``, without its key."""
        born, cpu, count, total = _GROUP.unpack(value)
        buckets, counts = cells.pop((born, cpu), ((), ()))
        distribution = self._distribution(dict(zip(buckets, counts, strict=True)))
        if distribution is not None:
            # The group was read later and may be ahead of its buckets.
            count = distribution.count
        if self._shape.values is RecordedValues.FLOAT:
            total = 0  # the kernel cannot add doubles
        return Group(name, None, count, total, distribution)

    def _cells(self) -> Cells:
        cells: Cells = {}
        if self._shape.values:
            for key, value in self._maps["buckets"].items():
                born, cpu, place = struct.unpack("<QII", key)
                of_group = cells.get((born, cpu))
                if of_group is None:
                    of_group = cells[born, cpu] = (array("I"), array("Q"))
                of_group[0].append(place)
                of_group[1].append(_u64(value))
        return cells

    def _distribution(self, counts: dict[int, int]) -> Distribution | None:
        if self._shape.values is RecordedValues.DURATION:
            return Histogram(counts)
        if self._shape.values is RecordedValues.INTEGER:
            return SignedHistogram(counts)
        if self._shape.values is RecordedValues.FLOAT:
            return FloatHistogram(counts)
        return None

    def _key_role(self, series: int) -> OperandRole:
        operand = self._key_operand(series)
        return operand.role if operand is not None else OperandRole.ARGUMENT

    def _texts(self) -> dict[bytes, bytes]:
        """Long keys by what the group is known by."""
        has_texts = self._shape.by is By.TEXT
        return dict(self._maps["texts"].items()) if has_texts else {}

    def _key(
        self, series: int, kind: int, raw: bytes, text: bytes | None
    ) -> tuple[Key, bool]:
        """The key, and whether it is cut; ``text``: of a long one, if it is kept."""
        if self._shape.by is not By.TEXT:
            return number_value(_u64(raw), self._key_operand(series)), False
        if kind == KeyKind.NO_TEXT:
            return (UNREADABLE_KEY if raw[0] else None), False
        if kind == KeyKind.KEY:
            return _text(raw), False
        # No memory for it, it is not there yet, or it was another a moment later.
        if text is None or not text.startswith(raw[:-8]):
            return _text(raw[:-8]), True
        return _text(text), text[LONGEST_KEY - 1] != 0


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _u64(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def number_value(raw: int, operand: Operand | None) -> int | float | bool | None:
    """The value of 8 raw bytes; an operand of None is a pid or a tid."""
    kind = operand.type if operand is not None else None
    if operand is None:
        return raw
    if kind is OperandType.FLOAT:
        if raw == NIL_FLOAT_BITS:
            return None
        return float(struct.unpack("<d", raw.to_bytes(8, "little"))[0])
    if kind is OperandType.BOOL:
        return None if raw == NIL_BOOL else bool(raw)
    signed = raw - (1 << 64) if raw >> 63 else raw
    if kind in (OperandType.INTEGER, OperandType.NIL):
        return None if signed == NIL_INTEGER and operand.size == 8 else signed
    return signed if operand.signed else raw
