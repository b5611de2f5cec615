"""``report``: a recording read and counted, whole or in part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rbtrace_py.aggregate.latencies import read_latencies
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.recording import Recording, is_recording
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.errors import UsageError
from rbtrace_py.model import RubyThread, Sample, ThreadState

__all__ = ["Filters", "Recorded", "is_recording", "open_recorded", "read_latencies"]


@dataclass(frozen=True, slots=True)
class Filters:
    """Which samples are wanted: all, where nothing is said.

    thread: a regular expression of names; the main thread without one is ``main``
    """

    thread: str = ""
    states: frozenset[ThreadState] = frozenset()
    pids: frozenset[int] = frozenset()

    @property
    def are_set(self) -> bool:
        return bool(self.thread or self.states or self.pids)

    def of(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """The samples that are wanted; UsageError for a wrong expression."""
        try:
            expression = re.compile(self.thread)
        except re.error as error:
            raise UsageError(f"--thread {self.thread!r}: {error}") from error
        # Asked once for each thread: expressions are slow.
        known: dict[RubyThread, bool] = {}
        for sample in samples:
            thread = sample.thread
            wanted = known.get(thread)
            if wanted is None:
                wanted = known[thread] = self._wants(thread, expression)
            if wanted and (not self.states or sample.state in self.states):
                yield sample

    def _wants(self, thread: RubyThread, expression: re.Pattern[str]) -> bool:
        if self.pids and thread.pid not in self.pids:
            return False
        name = thread.name or ("main" if thread.is_main else "")
        return expression.search(name) is not None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording that was read.

    notes: what is to be said of it besides: that it was cut, or damaged
    """

    profile: Profile
    notes: tuple[str, ...] = ()


def open_recorded(path: str, filters: Filters | None = None) -> Recorded:
    """Read all of a recording; BadRecording if it is none, OSError if not readable."""
    filters = filters or Filters()
    recording = Recording(path)
    meta = recording.meta
    counts = StackCounts(Statistics(meta.unit, meta.rate, meta.started_ns))
    counts.add_all(filters.of(recording))
    _tell(counts.statistics, recording.statistics)
    profile = Profile(counts, meta, lambda: filters.of(Recording(path)))
    return Recorded(profile, tuple(_notes(path, recording)))


def _tell(own: Statistics, read: Statistics) -> None:
    """What the samples do not say of themselves."""
    own.ended_ns = read.ended_ns
    own.rounds, own.late, own.failed = read.rounds, read.late, read.failed


def _notes(path: str, recording: Recording) -> Iterator[str]:
    if recording.damage:
        yield f"{path} is not whole ({recording.damage}): what follows is missing"
    elif not recording.is_complete:
        yield f"{path} was not closed: its last second may be missing"
