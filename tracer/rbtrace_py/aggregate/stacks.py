"""Stack counts: how much weight each stack of each thread and state has.

Adding is on the sampler's path, so it compares by identity alone. What was added is
merged by value now and then, and what does not fit then is one stack, ``(other)``:
memory is bounded however long it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacktree import MAX_NODES, ROOT, StackTree
from rbtrace_py.model.stacks import (
    Frame,
    FrameKind,
    RubyThread,
    Sample,
    SampleFlags,
    Stack,
    ThreadState,
)

OTHER = Frame(FrameKind.MARKER, "(other)", "(other)", "", None)
"""The only frame of the stack of all that there was no room for."""

MAX_ROWS = 1 << 18
MAX_THREADS = 1 << 13
_RECENT = 2048
_CLEAN = SampleFlags.CLEAN


class Row(NamedTuple):
    """One stack of one thread in one state, and its weight."""

    thread: RubyThread
    state: ThreadState
    frames: tuple[Frame, ...]
    weight: int


class Share(NamedTuple):
    """A method, or a line of one, and the weight that is its.

    frame: as it was first seen (of a method, its line is any of its lines)
    own: weight of the stacks it was the innermost frame of
    total: weight of the stacks it was in, however often
    """

    frame: Frame
    own: int
    total: int


class StackCounts:
    """Weights by thread, state and stack.

    by_thread: keep threads apart; else only their processes
    """

    def __init__(
        self,
        statistics: Statistics | None = None,
        by_thread: bool = True,
        max_rows: int = MAX_ROWS,
        max_threads: int = MAX_THREADS,
        max_nodes: int = MAX_NODES,
    ) -> None:
        self.statistics = statistics or Statistics()
        self.by_thread = by_thread
        self._max_rows = max_rows
        self._max_threads = max_threads
        self._tree = StackTree(max_nodes + 1)
        self._other = self._tree.node((OTHER,)) or ROOT
        self._recent: list[dict[tuple[RubyThread, Stack], int]] = [
            {} for _ in ThreadState
        ]
        self._threads: dict[tuple[object, ...], RubyThread] = {}
        self._rows: dict[tuple[RubyThread, int, int], int] = {}

    def add(self, sample: Sample) -> None:
        """Count one sample."""
        _, thread, state, stack, weight, flags, _ = sample
        recent = self._recent[state]
        key = (thread, stack)
        recent[key] = recent.get(key, 0) + weight
        statistics = self.statistics
        statistics.samples += 1
        # The truth of an IntFlag is asked in Python, its identity is not.
        if flags is not _CLEAN:
            statistics.flag(flags)
        if len(recent) > _RECENT:
            self._merge()

    def add_all(self, samples: Iterable[Sample]) -> StackCounts:
        for sample in samples:
            self.add(sample)
        return self

    def _merge(self) -> None:
        """Bring what was added by identity to where it is known by value."""
        for state, recent in enumerate(self._recent):
            for (thread, stack), weight in recent.items():
                self._put(thread, state, stack.frames, weight)
            recent.clear()

    def _put(
        self, thread: RubyThread, state: int, frames: tuple[Frame, ...], weight: int
    ) -> None:
        key = self._key(self._thread(thread), state, self._tree.node(frames))
        if key[2] == self._other and frames != (OTHER,):
            self.statistics.other += weight
        self._rows[key] = self._rows.get(key, 0) + weight

    def _key(
        self, thread: RubyThread, state: int, node: int | None
    ) -> tuple[RubyThread, int, int]:
        """The row that a stack belongs to.

        When there are many rows new ones forget the thread, and when there are twice
        as many also the stack.
        """
        if node is not None:
            key = (thread, state, node)
            if key in self._rows or len(self._rows) < self._max_rows:
                return key
            key = (self._other_thread(thread.pid), state, node)
            if key in self._rows or len(self._rows) < 2 * self._max_rows:
                return key
        return (self._other_thread(thread.pid), state, self._other)

    def _thread(self, thread: RubyThread) -> RubyThread:
        """The one object that stands for all equal threads."""
        if not self.by_thread:
            return self._known((thread.pid,), RubyThread(thread.pid, None, 0, ""))
        key = (thread.pid, thread.tid, thread.address, thread.name, thread.ractor)
        if key not in self._threads and len(self._threads) >= self._max_threads:
            return self._other_thread(thread.pid)
        return self._known(key, thread)

    def _other_thread(self, pid: int) -> RubyThread:
        if not self.by_thread:
            return self._known((pid,), RubyThread(pid, None, 0, ""))
        return self._known((pid,), RubyThread(pid, None, 0, OTHER.name))

    def _known(self, key: tuple[object, ...], thread: RubyThread) -> RubyThread:
        return self._threads.setdefault(key, thread)

    @property
    def weight(self) -> int:
        """The weight of all stacks, ``(other)`` too."""
        self._merge()
        return sum(self._rows.values())

    def __len__(self) -> int:
        """The number of rows."""
        self._merge()
        return len(self._rows)

    @property
    def pids(self) -> set[int]:
        """The PIDs of processes that have rows."""
        self._merge()
        return {thread.pid for thread, _, _ in self._rows}

    def rows(self) -> Iterator[Row]:
        """Every row with a weight, in the order in which stacks were first seen.

        Equal stacks come one after the other, with one object for their frames.
        """
        self._merge()
        frames: tuple[Frame, ...] = ()
        last = -1
        for key in sorted(self._rows, key=itemgetter(2)):
            thread, state, node = key
            if node != last:
                last, frames = node, self._tree.stack(node).frames
            if weight := self._rows[key]:
                yield Row(thread, ThreadState(state), frames, weight)

    def where(self, wanted: Callable[[RubyThread, ThreadState], bool]) -> StackCounts:
        """Only the rows of the threads and states that ``wanted`` takes.

        The statistics remain those of the whole.
        """
        self._merge()
        found = self._like()
        found._rows = {
            key: weight
            for key, weight in self._rows.items()
            if wanted(key[0], ThreadState(key[1]))
        }
        return found

    def without(
        self, unwanted: Callable[[ThreadState, tuple[Frame, ...]], bool]
    ) -> StackCounts:
        """Only the rows whose state and stack ``unwanted`` does not take."""
        self._merge()
        found = self._like()
        known: dict[tuple[int, int], bool] = {}
        for (thread, state, node), weight in self._rows.items():
            if (state, node) not in known:
                frames = self._tree.stack(node).frames
                known[state, node] = unwanted(ThreadState(state), frames)
            if not known[state, node]:
                found._rows[thread, state, node] = weight
        return found

    def snapshot(self) -> StackCounts:
        """These counts as they are now; a tree that only grows is shared."""
        self._merge()
        found = self._like()
        found._rows = dict(self._rows)
        return found

    def minus(self, older: StackCounts) -> StackCounts:
        """Return what came since ``older``, a snapshot of these counts."""
        self._merge()
        found = self._like()
        before = older._rows
        found.statistics = self.statistics.minus(older.statistics)
        found._rows = {
            key: difference
            for key, weight in self._rows.items()
            if (difference := weight - before.get(key, 0))
        }
        return found

    def merge(self, other: StackCounts) -> None:
        """Add the counts of another measurement."""
        self._merge()
        for thread, state, frames, weight in other.rows():
            self._put(thread, state, frames, weight)
        self.statistics = self.statistics.plus(other.statistics)

    def _like(self) -> StackCounts:
        found = StackCounts(
            self.statistics.copy(), self.by_thread, self._max_rows, self._max_threads
        )
        found._tree = self._tree
        found._other = self._other
        found._threads = self._threads
        return found

    def by_method(self, waits: Container[Frame] = ()) -> list[Share]:
        """Return self and total of each method, the largest self first.

        A C function is one method for all callers. Self time of ``waits`` goes to the
        frame below.
        """
        return self._shares(method_key, waits)

    def by_line(self, waits: Container[Frame] = ()) -> list[Share]:
        """Return self and total of each line of each method, the largest self first."""
        return self._shares(lambda frame: frame, waits)

    def _shares(
        self, name: Callable[[Frame], object], waits: Container[Frame]
    ) -> list[Share]:
        weights = self._by_node()
        keys: dict[object, int] = {}
        frames: list[Frame] = []
        numbers = []
        for frame in self._tree.frames:
            key = keys.setdefault(name(frame), len(frames))
            if key == len(frames):
                frames.append(frame)
            numbers.append(key)
        own: Counter[int] = Counter()
        total: Counter[int] = Counter()
        for node, weight in weights.items():
            inner = list(self._tree.path(node))
            path = [numbers[number] for number in inner]
            if path:
                is_wait = len(path) > 1 and self._tree.frames[inner[0]] in waits
                own[path[is_wait]] += weight
            for key in set(path):
                total[key] += weight
        found = [Share(frames[key], own[key], total[key]) for key in total]
        return sorted(found, key=_largest_first)

    def _by_node(self) -> Counter[int]:
        self._merge()
        weights: Counter[int] = Counter()
        for (_, _, node), weight in self._rows.items():
            weights[node] += weight
        return weights


def method_key(frame: Frame) -> object:
    """Return what tells methods apart: a C function is one, whoever calls it."""
    if frame.kind is FrameKind.C:
        return (frame.kind, frame.name)
    return (frame.kind, frame.name, frame.path)


def _largest_first(share: Share) -> tuple[object, ...]:
    frame = share.frame
    return (-share.own, -share.total, frame.name, frame.path, frame.line or 0)
