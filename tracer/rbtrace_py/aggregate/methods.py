"""Method counts from a process's hook: rows, and groups of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rbtrace_py.aggregate.histogram import Histogram, Number
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.model.recorded_groups import Key

METHODS = (MethodKind.NO_ROOM, MethodKind.RUBY, MethodKind.C)
"""Kinds that are method calls; the methods of the first kind are unknown."""

_NAMED = {MethodKind.NO_ROOM: "(no room)", MethodKind.GC: "(garbage collection)"}


@dataclass(frozen=True, slots=True)
class MethodRow:
    """Counts of one method in one process; times in nanoseconds.

    Attributes:
        entries: Number of calls that began.
        calls: Number of calls that returned.
        total: Time inside the method; recursive calls count once.
        own: Self time; None if some of its callees are not hooked.
        summed: Sum of the times of all calls, including recursive ones.
        longest: Time of the longest call.
    """

    pid: int
    method: CalledMethod
    entries: int
    calls: int = 0
    total: int = 0
    own: int | None = 0
    summed: int = 0
    longest: int = 0
    histogram: Histogram = field(default_factory=lambda: Histogram({}))


@dataclass(frozen=True, slots=True)
class MethodGroup(Group):
    """A group of rows.

    ``count`` is the number of calls that returned, or if calls are only counted, of
    calls that began. ``own``, ``summed``, and ``entries`` are as in ``MethodRow``.

    Attributes:
        has_total: True if ``total`` is known. It is unknown for several methods,
            because one may call another.
        longest: Exact time of the longest call in nanoseconds; None for an interval,
            where it is unknown.
        method: The method, if the group has only one.
    """

    own: int | None = 0
    summed: int = 0
    entries: int = 0
    longest: int | None = None
    method: CalledMethod | None = None
    has_total: bool = True

    def minus(self, older: Group) -> MethodGroup:
        # Not super(): a dataclass with slots is another class than it was.
        found = Group.minus(self, older)
        assert isinstance(found, MethodGroup)
        assert isinstance(older, MethodGroup)
        return replace(
            found,
            own=_sum(self.own, older.own, -1),
            summed=self.summed - older.summed,
            entries=self.entries - older.entries,
            longest=None,
        )

    def plus(self, other: Group) -> MethodGroup:
        """Return the sum; groups of different methods add up to a group without one."""
        # Not super(): a dataclass with slots is another class than it was.
        found = Group.plus(self, other)
        assert isinstance(found, MethodGroup)
        assert isinstance(other, MethodGroup)
        return replace(
            found,
            own=_sum(self.own, other.own),
            summed=self.summed + other.summed,
            entries=self.entries + other.entries,
            longest=max(self.longest or 0, other.longest or 0),
            method=self.method if self.method == other.method else None,
        )

    @property
    def max(self) -> Number:
        """The same as ``highest``."""
        return self.highest

    @property
    def highest(self) -> int:
        """The longest call in nanoseconds: exact if known, else from its bucket."""
        if self.longest is not None or self.distribution is None:
            return self.longest or 0
        return int(self.distribution.max)


def _sum(one: int | None, other: int | None, sign: int = 1) -> int | None:
    """Return the sum of two times, or their difference if ``sign`` is -1."""
    return None if one is None or other is None else one + sign * other


@dataclass(frozen=True, slots=True)
class MethodResult(Result):
    """A snapshot of the counts of the agent's hooks."""

    groups: tuple[MethodGroup, ...]


def group_rows(
    rows: Iterable[MethodRow],
    series: Mapping[MethodKind, str],
    by: str | None,
    is_timed: bool,
) -> list[MethodGroup]:
    """Group rows.

    Args:
        rows: Rows of any processes.
        series: Series name of each kind; rows of other kinds are omitted.
        by: ``method``, ``class``, ``pid``, or None for one group per series.
        is_timed: True for durations; False to count only entries.
    """
    found: dict[tuple[str, bytes], MethodGroup] = {}
    for row in rows:
        name = series.get(row.method.kind)
        if name is None or not row.entries:
            continue
        group = _group(row, name, by, is_timed)
        place = (name, group.raw)
        found[place] = found[place].plus(group) if place in found else group
    return list(found.values())


def _group(row: MethodRow, series: str, by: str | None, is_timed: bool) -> MethodGroup:
    key, raw = _key(row, by)
    method = row.method if by == "method" else None
    if not is_timed:
        return MethodGroup(
            series, key, row.entries, raw=raw, entries=row.entries, method=method
        )
    has_total = by == "method" or row.method.kind not in METHODS
    total = row.total if has_total else 0
    return MethodGroup(
        series, key, row.calls, total, row.histogram, raw=raw,
        own=row.own, summed=row.summed, entries=row.entries,
        longest=row.longest, method=method, has_total=has_total,
    )  # fmt: skip


def _key(row: MethodRow, by: str | None) -> tuple[Key, bytes]:
    """Return the key, and bytes that identify it in each snapshot."""
    method = row.method
    if by is None:
        return None, b""
    if by == "pid":
        return row.pid, str(row.pid).encode()
    key = _NAMED.get(method.kind) or _name(method, by)
    parts = [method.kind.name, key]
    if by == "method":
        # Two methods can have the same name, for example if a class was redefined.
        parts += [method.path or "", str(method.line)]
    return key, "\0".join(parts).encode("utf-8", "surrogateescape")


def _name(method: CalledMethod, by: str) -> str:
    if method.kind is MethodKind.OBJECT and method.owner is None:
        return "(hidden)"  # an internal object, of a class that programs cannot access
    return method.full_name if by == "method" else method.owner or "(unknown)"
