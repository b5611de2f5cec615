"""Stack counts: the weight of each stack of each thread and state.

Adding is on the sampler's hot path, so it compares by identity only. The added stacks
are periodically merged by value. Memory is bounded: stacks that do not fit are counted
as one stack, ``(other)``.
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
"""The only frame of the stack that replaces all stacks without room."""

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
    """A method, or a line of a method, and its weight.

    Attributes:
        frame: The first frame seen of it; the line of a method is any of its lines.
        own: Weight of the stacks whose innermost frame it is.
        total: Weight of the stacks that contain it; recursion counts once.
    """

    frame: Frame
    own: int
    total: int


class StackCounts:
    """Weights by thread, state, and stack.

    Args:
        statistics: Statistics of the sampling.
        by_thread: Distinguish threads; if False, only processes.
        max_rows: Number of rows beyond which new rows omit the thread.
        max_threads: Maximum number of threads.
        max_nodes: Maximum number of nodes of the stack tree.
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
        # The truth value of an IntFlag runs Python code; an identity check does not.
        if flags is not _CLEAN:
            statistics.flag(flags)
        if len(recent) > _RECENT:
            self._merge()

    def add_all(self, samples: Iterable[Sample]) -> StackCounts:
        for sample in samples:
            self.add(sample)
        return self

    def _merge(self) -> None:
        """Merge the stacks that were added by identity into the rows, by value."""
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
        """Return the row of a stack.

        Beyond ``max_rows`` rows, new rows omit the thread; beyond twice as many, also
        the stack.
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
        """Return the one object that represents all equal threads."""
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
        """The weight of all stacks, including ``(other)``."""
        self._merge()
        return sum(self._rows.values())

    def __len__(self) -> int:
        """Return the number of rows."""
        self._merge()
        return len(self._rows)

    @property
    def pids(self) -> set[int]:
        """The PIDs of processes that have rows."""
        self._merge()
        return {thread.pid for thread, _, _ in self._rows}

    def rows(self) -> Iterator[Row]:
        """Yield the rows with a weight, in the order in which stacks were first seen.

        Rows with equal stacks are consecutive and share one tuple of frames.
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
        """Return the rows whose thread and state ``wanted`` accepts.

        The statistics still describe all rows.
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
        """Return the rows except those whose state and stack ``unwanted`` accepts."""
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
        """Return a copy of the current counts; it shares the tree, which only grows."""
        self._merge()
        found = self._like()
        found._rows = dict(self._rows)
        return found

    def minus(self, older: StackCounts) -> StackCounts:
        """Return the counts since ``older``, a snapshot of these counts."""
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
        """Return self and total of each method, largest self first.

        A C function is one method for all its callers. The self weight of frames in
        ``waits`` goes to their caller.
        """
        return self._shares(method_key, waits)

    def by_line(self, waits: Container[Frame] = ()) -> list[Share]:
        """Return self and total of each line of each method, largest self first."""
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
    """Return the identity of a frame's method; of C functions, the name alone.

    A C function's frame has the path of its caller.
    """
    if frame.kind is FrameKind.C:
        return (frame.kind, frame.name)
    return (frame.kind, frame.name, frame.path)


def _largest_first(share: Share) -> tuple[object, ...]:
    frame = share.frame
    return (-share.own, -share.total, frame.name, frame.path, frame.line or 0)
