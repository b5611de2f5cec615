"""Groups that BPF programs record: a count and a distribution per series and key.

``programs/record.h`` writes the maps. Several programs of a session share them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import (
    BEGINNINGS,
    BUCKET,
    BUCKETS,
    GROUP,
    GROUP_NUMBER,
    KEY,
    KEY_TEXT,
    KEY_WHOLE,
    LONGEST_KEY,
    THREAD,
)
from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.compiled_filter import CompiledFilter
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.probe_engine import Engine
from rbtrace_py.bpf.slots import operand_value
from rbtrace_py.bpf.tracked_pids import TrackedPids
from rbtrace_py.model.probes import Operand, OperandRole
from rbtrace_py.model.recorded_groups import By, Key, RecordedGroup, RecordedValues

DENSE_SERIES = 8
"""Maximum number of series with a complete histogram each (270 KB)."""

UNREADABLE_KEY = "(unreadable)"

_MOST_THREADS = 65_536
_BUCKETS_PER_KEY = 256
_MOST_BUCKETS = 1 << 22
_MOST_PREALLOCATED = 1 << 14
"""Maximum number of groups whose memory is allocated at the start."""
_CHUNK = 64
"""Counters of a dense histogram that are skipped together if all are 0."""

_Cells = dict[tuple[int, int], tuple["array[int]", "array[int]"]]
"""Bucket indexes and counts of each group, by the group's ``born`` and ``cpu``."""


class _KeyKind(IntEnum):
    """``kind`` of ``struct key``."""

    KEY = 0
    NO_TEXT = 1
    LONG_TEXT = 2


@dataclass(frozen=True, slots=True)
class GroupShape:
    """The form of the recorded groups.

    Attributes:
        values: Kind of the values that are distributed.
        by: Kind of the keys.
        dense: True for a complete histogram per series. Otherwise groups and buckets
            are added when they are hit.
        series: Maximum number of series.
        max_keys: Maximum number of groups with a key, of all series together. Each
            series has one more group for the remaining keys.
    """

    values: RecordedValues
    by: By
    dense: bool
    series: int
    max_keys: int

    def flags(self) -> dict[str, int]:
        """Return the numbers for ``-D``."""
        return {
            "VALUES": int(self.values),
            "BY": int(self.by),
            "DENSE": int(self.dense),
        }

    def maps(self) -> dict[str, MapSpec]:
        """Return the maps that hold the groups."""
        array, hash_ = sys_.MAP_TYPE_ARRAY, sys_.MAP_TYPE_HASH
        made = {"totals": MapSpec(array, 4, 8, self.series, sys_.F_MMAPABLE)}
        if self.dense and self.values:
            cells = self.series * BUCKETS
            made["histogram"] = MapSpec(array, 4, 8, cells, sys_.F_MMAPABLE)
        if self.dense:
            return made
        key_size = KEY.size + (KEY_TEXT if self.by is By.TEXT else 8)
        lazily = sys_.F_NO_PREALLOC
        groups = self.series if self.by is By.NOTHING else self.max_keys
        flags = 0 if groups <= _MOST_PREALLOCATED else lazily
        made["groups"] = MapSpec(hash_, key_size, GROUP.size, groups, flags)
        if self.by is not By.NOTHING:
            made["others"] = MapSpec(array, 4, GROUP.size, self.series, sys_.F_MMAPABLE)
        if self.by is By.TEXT:
            made["texts"] = MapSpec(hash_, GROUP_NUMBER.size, KEY_WHOLE, groups, lazily)
            made["blank"] = MapSpec(array, 4, KEY_WHOLE, 1)
        if self.values:
            cells = min(self.max_keys * _BUCKETS_PER_KEY + BUCKETS, _MOST_BUCKETS)
            made["buckets"] = MapSpec(hash_, BUCKET.size, 8, cells, lazily)
        return made


class GroupRecorder:
    """The groups of a session, recorded by one or more engines."""

    def __init__(
        self,
        shape: GroupShape,
        series: Mapping[str, int],
        key_operand: Callable[[int], Operand | None],
    ) -> None:
        """Create a recorder without engines.

        Args:
            shape: Form of the groups.
            series: Numbers of the series by name. The caller may add series.
            key_operand: Returns the operand that is the key of a series; None for
                the pid or the tid.
        """
        self._shape = shape
        self._series = series
        self._key_operand = key_operand
        self._maps: dict[str, Map] = {}

    def make_engine(
        self,
        attacher: Attacher,
        tracked: TrackedPids | None,
        source: str,
        durations: int,
        filter_: CompiledFilter | None = None,
        pairs: int = 0,
    ) -> Engine:
        """Make an engine that records into the maps of this recorder.

        Args:
            attacher: As for ``Engine``, like ``tracked`` and ``filter_``.
            tracked: The processes whose hits count.
            source: File in ``programs/``.
            durations: One bit per slot that may hold the duration of a span.
            filter_: The filter, if any.
            pairs: Number of pairs of probes, for ``pairs.c``.

        Raises:
            NotPermitted: The tracer lacks the rights to use BPF.
            BpfError: The program cannot be compiled, or a map cannot be made.
        """
        maps = _pair_maps() if pairs else {}
        if not self._maps:
            maps.update(self._shape.maps())
        numbers = {"DURATIONS": durations, "PAIRS": pairs}
        flags, shared = self._shape.flags(), self._maps
        engine = Engine(
            attacher, tracked, source, maps, flags, numbers, filter_, shared
        )
        self._maps = {name: engine.program.maps[name] for name in self._shape.maps()}
        return engine

    def reserve_other(self, series: int) -> None:
        """Initialize the group of a series for keys beyond ``max_keys``."""
        if self._shape.by is By.NOTHING:
            return
        # Larger than any time at which the kernel creates a group.
        fresh = GROUP.pack((1 << 63) + series, 0, 0, 0)
        self._maps["others"].put(series.to_bytes(4, "little"), fresh)

    def groups(self) -> Iterator[RecordedGroup]:
        """Yield a snapshot of the groups, in no particular order."""
        return self._dense() if self._shape.dense else self._sparse()

    def _dense(self) -> Iterator[RecordedGroup]:
        totals = self._maps["totals"].view()
        for name, series in self._series.items():
            total = _u64(totals[8 * series : 8 * series + 8])
            if not self._shape.values:
                yield RecordedGroup(name, None, total)
                continue
            stride = BUCKETS * 8
            cells = self._maps["histogram"].view()
            buckets = dense_buckets(cells[series * stride : (series + 1) * stride])
            yield RecordedGroup(name, None, sum(buckets.values()), total, buckets)

    def _sparse(self) -> Iterator[RecordedGroup]:
        cells = self._cells()
        texts = self._texts()
        names = {number: name for name, number in self._series.items()}
        for key, value in self._maps["groups"].items():
            series, kind = KEY.unpack_from(key)
            if self._shape.by is By.NOTHING:
                yield self._group(names.pop(series), value, cells)
                continue
            text = texts.get(value[: GROUP_NUMBER.size])
            found, is_cut = self._key(series, kind, key[8:], text)
            yield replace(
                self._group(names[series], value, cells),
                key=found,
                truncated=is_cut,
                raw=key[4:],
                key_role=self._key_role(series),
            )
        if self._shape.by is By.NOTHING:
            for name in names.values():
                yield self._group(name, bytes(GROUP.size), {})
            return
        others = self._maps["others"].view()
        for series, name in names.items():
            value = others[GROUP.size * series : GROUP.size * (series + 1)]
            yield replace(self._group(name, value, cells), is_other=True)

    def _group(self, name: str, value: bytes, cells: _Cells) -> RecordedGroup:
        """Read a ``struct group``, without its key."""
        born, cpu, count, total = GROUP.unpack(value)
        if not self._shape.values:
            return RecordedGroup(name, None, count, total)
        places, counts = cells.pop((born, cpu), ((), ()))
        buckets = dict(zip(places, counts, strict=True))
        if self._shape.values is RecordedValues.FLOAT:
            total = 0  # the kernel cannot add doubles
        return RecordedGroup(name, None, sum(counts), total, buckets)

    def _cells(self) -> _Cells:
        cells: _Cells = {}
        if self._shape.values:
            for key, value in self._maps["buckets"].items():
                born, cpu, place = BUCKET.unpack(key)
                of_group = cells.get((born, cpu))
                if of_group is None:
                    of_group = cells[born, cpu] = (array("I"), array("Q"))
                of_group[0].append(place)
                of_group[1].append(_u64(value))
        return cells

    def _key_role(self, series: int) -> OperandRole:
        operand = self._key_operand(series)
        return operand.role if operand is not None else OperandRole.ARGUMENT

    def _texts(self) -> dict[bytes, bytes]:
        """Long keys, by ``born`` and ``cpu`` of their groups."""
        has_texts = self._shape.by is By.TEXT
        return dict(self._maps["texts"].items()) if has_texts else {}

    def _key(
        self, series: int, kind: int, raw: bytes, text: bytes | None
    ) -> tuple[Key, bool]:
        """Decode a key, and tell if it is cut; ``text`` is a complete long key."""
        if self._shape.by is not By.TEXT:
            return operand_value(_u64(raw), self._key_operand(series)), False
        if kind == _KeyKind.NO_TEXT:
            return (UNREADABLE_KEY if raw[0] else None), False
        if kind == _KeyKind.KEY:
            return _text(raw), False
        # The kernel had no memory for it, has not stored it yet, or read it after the
        # program had changed it.
        if text is None or not text.startswith(raw[:-8]):
            return _text(raw[:-8]), True
        return _text(text), text[LONGEST_KEY - 1] != 0


def dense_buckets(counters: bytes | memoryview) -> dict[int, int]:
    """Return the counts that are not 0, by index, of an array of native u64."""
    words = memoryview(counters).cast("B").cast("Q")
    zeros = bytes(8 * _CHUNK)
    found: dict[int, int] = {}
    for start in range(0, len(words), _CHUNK):
        chunk = words[start : start + _CHUNK]
        if chunk.tobytes() != zeros:
            found.update((i, n) for i, n in enumerate(chunk, start) if n)
    return found


def open_begins(engine: Engine) -> int:
    """Return how many pairs of an engine have begun but not ended."""
    threads = engine.program.maps["threads"]
    return sum(BEGINNINGS.unpack(value)[0] for _, value in threads.items())


def _pair_maps() -> dict[str, MapSpec]:
    return {
        "threads": MapSpec(
            *(sys_.MAP_TYPE_HASH, THREAD.size, BEGINNINGS.size, _MOST_THREADS),
            sys_.F_NO_PREALLOC,
        ),
        "nothing": MapSpec(sys_.MAP_TYPE_ARRAY, 4, BEGINNINGS.size, 1),
    }


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _u64(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
