"""``report``: a recording read and counted, whole or in part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.errors import NoSuchTarget, UsageError
from rbtrace_py.linux.text import safe_text
from rbtrace_py.model.recording_meta import RUN_TIME
from rbtrace_py.model.stacks import RubyThread, Sample, ThreadState
from rbtrace_py.recording.result_files import read_result
from rbtrace_py.recording.sample_recording import Recording, is_recording

__all__ = ["Filters", "Recorded", "is_recording", "open_recorded", "read_result"]

_MOST_TOLD = 10
_NAME = 64
"""Bytes of a thread's name that are told."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on samples; none by default.

    thread: a regular expression of names; the main thread without one is ``main``
    """

    thread: str = ""
    states: frozenset[ThreadState] = frozenset()
    pids: frozenset[int] = frozenset()

    @property
    def are_set(self) -> bool:
        return bool(self.thread or self.states or self.pids)

    def of(
        self, samples: Iterable[Sample], known: dict[RubyThread, bool] | None = None
    ) -> Iterator[Sample]:
        """The samples that are wanted; UsageError for a wrong expression.

        known: gets each thread, and whether it is wanted
        """
        expression = self._expression()
        # Asked once for each thread: expressions are slow.
        known = {} if known is None else known
        for sample in samples:
            thread = sample.thread
            wanted = known.get(thread)
            if wanted is None:
                wanted = known[thread] = self._wants(thread, expression)
            if wanted and (not self.states or sample.state in self.states):
                yield sample

    def _expression(self) -> re.Pattern[str]:
        try:
            return re.compile(self.thread)
        except re.error as error:
            raise UsageError(f"--thread {self.thread!r}: {error}") from error

    def _wants(self, thread: RubyThread, expression: re.Pattern[str]) -> bool:
        if self.pids and thread.pid not in self.pids:
            return False
        return expression.search(_name(thread)) is not None

    def missing(
        self, path: str, threads: Iterable[tuple[int, str]]
    ) -> NoSuchTarget | None:
        """The error where none of a recording's threads is wanted; None if one is.

        threads: each one's pid and name
        """
        found = dict.fromkeys(threads)
        of_pids = [name for pid, name in found if pid in self.pids or not self.pids]
        expression = self._expression()
        if not found or any(map(expression.search, of_pids)):
            return None
        if not of_pids:
            what = "process " + " or ".join(map(str, sorted(self.pids)))
            there = [str(pid) for pid in sorted({pid for pid, _ in found})]
        else:
            what = f"thread whose name matches {self.thread!r}"
            there = [safe_text(_bytes(name), _NAME) for name in dict.fromkeys(of_pids)]
            there = sorted(name or "(no name)" for name in there)
        more = f", and {len(there) - _MOST_TOLD} more" if there[_MOST_TOLD:] else ""
        return NoSuchTarget(
            f"there is no {what} in {path}",
            f"Use one of {', '.join(there[:_MOST_TOLD])}{more}",
        )


def _name(thread: RubyThread) -> str:
    return thread.name or ("main" if thread.is_main else "")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording that was read.

    notes: what else a reader must know, one line each
    missing: why nothing is left of it
    """

    profile: Profile
    notes: tuple[str, ...] = ()
    missing: NoSuchTarget | None = None


def open_recorded(path: str, filters: Filters | None = None) -> Recorded:
    """Read all of a recording; BadRecording if it is none, OSError if not readable."""
    filters = filters or Filters()
    recording = Recording(path)
    meta = recording.meta
    counts = StackCounts(Statistics(meta.unit, meta.rate, meta.started_ns))
    known: dict[RubyThread, bool] = {}
    counts.add_all(filters.of(recording, known))
    counts.statistics.take_losses(recording.statistics)
    counts.statistics.gap_ns = recording.statistics.gap_ns
    counts.statistics.incomplete = recording.statistics.incomplete
    profile = Profile(counts, meta, lambda: filters.of(Recording(path)))
    missing = filters.missing(path, ((each.pid, _name(each)) for each in known))
    return Recorded(profile, tuple(_notes(path, recording)), missing)


def _notes(path: str, recording: Recording) -> Iterator[str]:
    meta = recording.meta
    if (meta.mode, meta.unit) == ("wall", "ns") and meta.weights != RUN_TIME:
        yield (
            f"{path} was recorded by an older version: a method that waits may show"
            " running time of the methods before it, up to one sampling period per wait"
        )
    if recording.is_written:
        yield f"{path} is still being written"
