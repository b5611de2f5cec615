"""Data of ``top``: recent and total shares of methods, and the threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import OTHER, Share, method_key
from rbtrace_py.model.stacks import Frame, RubyThread, ThreadState

MAX_NAMES = 1 << 16
"""Maximum number of methods or lines; the rest is counted as ``(other)``."""


class Weights(NamedTuple):
    """Recent and total weights of a method, or of a line of a method.

    Attributes:
        frame: A frame of it.
        recent_own: ``own`` of the recent slices.
        recent_total: ``total`` of the recent slices.
        own: Weight of the stacks whose innermost frame it is.
        total: Weight of the stacks that contain it.
    """

    frame: Frame
    recent_own: int
    recent_total: int
    own: int
    total: int


@dataclass(frozen=True, slots=True)
class ThreadNow:
    """One thread at the moment of a picture.

    Attributes:
        thread: The thread.
        state: Its state.
        cpu: Fraction of one CPU that it used since the last picture; None if unknown.
        frame: Innermost frame of its stack; None if the stack is empty or unreadable.
    """

    thread: RubyThread
    state: ThreadState
    cpu: float | None
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class Picture:
    """The data that ``top`` displays at one moment.

    Attributes:
        pids: PIDs of the targets.
        command: Command line of the first target; safe to print.
        rubies: Ruby versions.
        mode: Sampling mode.
        statistics: Statistics since the start, or since they were cleared.
        recent_ns: Duration of the recent slices.
        recent: Weight of all samples in the recent slices.
        weight: Weight of all samples.
        idle: Weight of the omitted idle samples since the start.
        methods: Weights of methods, unordered.
        lines: Weights of lines, unordered.
        threads: The threads.
        folder: Working directory of the first target; empty if unknown.
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
        """Return the weight of 100 %: one CPU in mode cpu, else all samples."""
        if self.mode == "cpu":
            return self.recent_ns if recent else self.statistics.duration_ns
        return self.recent if recent else self.weight


@dataclass(slots=True)
class Slice:
    """The counted samples of one interval of ``ns`` nanoseconds."""

    ns: int
    weight: int
    methods: Sequence[Share]
    lines: Sequence[Share]


@dataclass(slots=True)
class _Sums:
    """Self and total weight by method or line."""

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
    """Sums of all slices, and of the last ``kept`` slices."""

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
