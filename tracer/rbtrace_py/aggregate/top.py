"""Data of ``top``: shares of methods, recent and in total, and the threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import OTHER, Share, method_key
from rbtrace_py.model.stacks import Frame, RubyThread, ThreadState

MAX_NAMES = 1 << 16
"""Methods, or lines, that are told apart; the rest is ``(other)``."""


class Weights(NamedTuple):
    """A method, or a line of one: its weights lately, and since the start.

    own: of the stacks it was the innermost frame of; total: of those it was in
    """

    frame: Frame
    recent_own: int
    recent_total: int
    own: int
    total: int


@dataclass(frozen=True, slots=True)
class ThreadNow:
    """One thread at the moment of a picture.

    cpu: the part of one CPU that it had since the last one; None: not known
    frame: the innermost of its stack; None: it has none, or could not be read
    """

    thread: RubyThread
    state: ThreadState
    cpu: float | None
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class Picture:
    """All there is to show at one moment.

    rubies: versions; command: of the first target, safe to show; folder: its working
        directory, where it is known
    statistics: since the start, or since it was cleared
    recent_ns: how long ``recent`` is; recent, weight: of all samples in it, and of all
    idle: weight of idle samples that are left out, since the start
    methods, lines: in no order
    """

    pids: tuple[int, ...]
    command: str
    rubies: tuple[str, ...]
    mode: str
    statistics: Statistics
    recent_ns: int = 0
    recent: int = 0
    weight: int = 0
    idle: int = 0
    methods: tuple[Weights, ...] = ()
    lines: tuple[Weights, ...] = ()
    threads: tuple[ThreadNow, ...] = ()
    folder: str = ""

    def everything(self, recent: bool) -> int:
        """Return what 100 % is: one CPU all the time, or in mode wall all samples."""
        if self.mode == "cpu":
            return self.recent_ns if recent else self.statistics.duration_ns
        return self.recent if recent else self.weight


@dataclass(slots=True)
class Slice:
    """The samples of one interval, counted; ``ns``: how long it was."""

    ns: int
    weight: int
    methods: Sequence[Share]
    lines: Sequence[Share]


@dataclass(slots=True)
class _Sums:
    """Own and total by name."""

    frames: dict[object, Frame] = field(default_factory=dict)
    own: dict[object, int] = field(default_factory=dict)
    total: dict[object, int] = field(default_factory=dict)

    def add(self, shares: Iterable[Share], by_line: bool) -> None:
        for frame, own, total in shares:
            key = frame if by_line else method_key(frame)
            if key not in self.frames:
                if len(self.frames) < MAX_NAMES:
                    self.frames[key] = frame
                else:
                    key = OTHER
                    self.frames[key] = OTHER
            self.own[key] = self.own.get(key, 0) + own
            self.total[key] = self.total.get(key, 0) + total


class RecentWeights:
    """Sums of slices: of all, and of the last ``kept`` ones."""

    def __init__(self, kept: int) -> None:
        self._recent: deque[Slice] = deque(maxlen=kept)
        self._all = (_Sums(), _Sums())
        self.weight = 0

    def add(self, one: Slice) -> None:
        self._recent.append(one)
        self.weight += one.weight
        self._all[0].add(one.methods, by_line=False)
        self._all[1].add(one.lines, by_line=True)

    @property
    def recent(self) -> int:
        """Weight of the last slices."""
        return sum(one.weight for one in self._recent)

    @property
    def recent_ns(self) -> int:
        return sum(one.ns for one in self._recent)

    def methods(self) -> tuple[Weights, ...]:
        return self._weights(by_line=False)

    def lines(self) -> tuple[Weights, ...]:
        return self._weights(by_line=True)

    def _weights(self, by_line: bool) -> tuple[Weights, ...]:
        recent = _Sums()
        for one in self._recent:
            recent.add(one.lines if by_line else one.methods, by_line)
        sums = self._all[by_line]
        return tuple(
            Weights(
                frame,
                recent.own.get(key, 0),
                recent.total.get(key, 0),
                sums.own[key],
                sums.total[key],
            )
            for key, frame in sums.frames.items()
        )
