"""Method counts from a process's hook: rows, and groups made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rbtrace_py.aggregate.histogram import Histogram, Number
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.model.calls import CalledMethod, MethodKind
from rbtrace_py.model.recorded_groups import Key

METHODS = (MethodKind.NO_ROOM, MethodKind.RUBY, MethodKind.C)
"""Kinds that are calls of methods; of the first nobody knows which."""

_NAMED = {MethodKind.NO_ROOM: "(no room)", MethodKind.GC: "(garbage collection)"}


@dataclass(frozen=True, slots=True)
class MethodRow:
    """Counts of one method in one process; times in nanoseconds.

    entries: calls that began; calls: that returned
    total: inside it, recursive calls counted once; own: less those below it, or None
        if the methods below it are not all hooked
    summed: of all calls, one by one; longest: of them
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
    """A group of rows; ``count`` is of calls that returned, or, counted, that began.

    own, summed, entries: as of a row
    has_total: is ``total`` known? Of several methods it is not, as one may be called
        inside another
    longest: nanoseconds, exactly; None of an interval, where it is not known
    method: where it is of one only
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
        """Both together; of another method it is of none."""
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
        """The longest call, exactly where that is known."""
        if self.longest is not None or self.distribution is None:
            return self.longest or 0
        return int(self.distribution.max)


def _sum(one: int | None, other: int | None, sign: int = 1) -> int | None:
    """Return the sum of two times, or their difference if ``sign`` is -1."""
    return None if one is None or other is None else one + sign * other


@dataclass(frozen=True, slots=True)
class MethodResult(Result):
    """A snapshot of what the agent's hooks counted."""

    groups: tuple[MethodGroup, ...]


def group_rows(
    rows: Iterable[MethodRow],
    series: Mapping[MethodKind, str],
    by: str | None,
    is_timed: bool,
) -> list[MethodGroup]:
    """Rows by ``by`` (method, class, pid, or None: all of a series).

    series: names of the series that a kind belongs to; others are left out
    is_timed: is it about durations? Else only entries count.
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
    """The key, and the bytes by which it is known in the next snapshot."""
    method = row.method
    if by is None:
        return None, b""
    if by == "pid":
        return row.pid, str(row.pid).encode()
    key = _NAMED.get(method.kind) or _name(method, by)
    parts = [method.kind.name, key]
    if by == "method":
        # Methods of one name may be two, as of a class that was removed.
        parts += [method.path or "", str(method.line)]
    return key, "\0".join(parts).encode("utf-8", "surrogateescape")


def _name(method: CalledMethod, by: str) -> str:
    if method.kind is MethodKind.OBJECT and method.owner is None:
        return "(hidden)"  # Ruby's own, of no class that a program can have
    return method.full_name if by == "method" else method.owner or "(unknown)"
