"""The package as a library: look into Ruby processes from a Python program.

``from rbtrace_py import attach, dump, …`` has all that is in ``__all__`` here; it is
imported when it is first used. docs/library.md tells it with examples. Whatever goes
wrong for a reason outside of the program is an ``RbtraceError``, whose ``hint`` says
what to do.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rbtrace_py.aggregate.meta import Meta
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.recording import RecordingWriter
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import Row, Share, StackCounts
from rbtrace_py.errors import (
    BadRecording,
    NoSuchTarget,
    NotPermitted,
    NotRuby,
    RbtraceError,
    UnknownRuby,
    UsageError,
)
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process
from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread
from rbtrace_py.model.stacks import (
    Frame,
    FrameKind,
    RubyThread,
    Sample,
    SampleFlags,
    Stack,
    ThreadState,
)
from rbtrace_py.report.exchange.folded import folded_rows
from rbtrace_py.report.exchange.rows import Folding
from rbtrace_py.report.formats import FORMATS, format_named
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.session.drive import drive
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.stacks.cores import CoreOptions
from rbtrace_py.session.stacks.cores import dump_core as _dump_core
from rbtrace_py.session.stacks.dump import DumpOptions
from rbtrace_py.session.stacks.dump import dump as _dump
from rbtrace_py.session.stacks.report import Filters, Recorded, open_recorded
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Add, Sampling, SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import SamplingPasses
from rbtrace_py.session.targets.targets import Targets

__all__ = [
    "BadRecording",
    "Dump",
    "DumpedFiber",
    "DumpedThread",
    "Filters",
    "Frame",
    "FrameKind",
    "Meta",
    "NoSuchTarget",
    "NotPermitted",
    "NotRuby",
    "Profile",
    "RbtraceError",
    "Recorded",
    "Row",
    "RubyThread",
    "Sample",
    "SampleFlags",
    "Sampler",
    "Share",
    "Stack",
    "StackCounts",
    "Statistics",
    "ThreadState",
    "UnknownRuby",
    "UsageError",
    "attach",
    "count",
    "dump",
    "dump_core",
    "fold",
    "formats",
    "read_recording",
    "render",
]

_CHUNK_SECONDS = 0.075
"""How long samples are gathered before they are handed on: so short that the
sampling is refreshed once for them, at their end."""


def attach(
    pids: int | Iterable[int],
    *,
    rate: float = 99.0,
    mode: str = "cpu",
    idle: bool = True,
    subprocesses: bool = False,
    pause: bool = False,
    ruby_version: str | None = None,
) -> Sampler:
    """Attach to running Ruby processes, whose stacks can then be sampled.

    rate: looks a second
    mode: ``cpu``: threads that are on a CPU, ``wall``: all, each with its state
    idle: in mode wall, also threads that sleep
    subprocesses: children join
    pause: stop a process for the time its stacks are read
    ruby_version: read them as this Ruby (``3.2``), whatever they say they are

    Raises NoSuchTarget, NotPermitted, NotRuby, UnknownRuby, UsageError.
    """
    modes = [one.value for one in SamplingMode]
    if mode not in modes:
        raise UsageError(f"no mode {mode!r}", f"there are {', '.join(modes)}")
    wanted = [pids] if isinstance(pids, int) else list(pids)
    if not wanted:
        raise UsageError("no process given")
    options = SamplingOptions(rate, SamplingMode(mode), idle, pause, ruby_version)
    return Sampler(Targets.from_pids(wanted, subprocesses), options)


class Sampler(Closing):
    """Processes that were attached to; made by ``attach``, closed by ``with``.

    The processes go on as they are, before, while and after.
    """

    def __init__(self, targets: Targets, options: SamplingOptions) -> None:
        self._targets = targets
        try:
            self._sampling = Sampling(targets, options).__enter__()
        except BaseException:
            targets.close()
            raise

    @property
    def statistics(self) -> Statistics:
        """How many samples there were so far, and what was late or failed."""
        return self._sampling.statistics

    @property
    def meta(self) -> Meta:
        """Processes, Ruby versions, rate and mode."""
        return self._sampling.meta

    @property
    def notes(self) -> Sequence[str]:
        """What a user should know, a line each."""
        return tuple(self._sampling.notes)

    @property
    def threads(self) -> tuple[RubyThread, ...]:
        """All Ruby threads, as of the last look a tenth of a second ago."""
        return tuple(one for ruby in self._sampling.rubies for one in ruby.threads)

    @property
    def is_over(self) -> bool:
        """Have all processes ended?"""
        return self._sampling.is_over

    def samples(
        self, seconds: float | None = None, count: int | None = None
    ) -> Iterator[Sample]:
        """Sample, and yield what each thread was doing, in order of time.

        Ends after ``seconds``, after ``count`` samples or when all processes have
        ended. Samples come up to a tenth of a second late. Between two that are asked
        for nothing is sampled: what takes long is better done afterwards.
        """
        end = None if seconds is None else time.monotonic() + seconds
        chunk = max(_CHUNK_SECONDS, 2 / self._sampling.options.rate)
        left = count
        while not self._sampling.is_over and left != 0:
            if end is not None:
                chunk = min(chunk, end - time.monotonic())
            if chunk <= 0:
                return
            found: list[Sample] = []
            self._run(found.append, chunk)
            for sample in found[:left]:
                self.statistics.samples += 1
                self.statistics.flag(sample.flags)
                yield sample
            left = None if left is None else max(left - len(found), 0)

    def profile(
        self, seconds: float | None = None, count: int | None = None
    ) -> Profile:
        """Sample, and count equal stacks; that is less work than ``samples``."""
        counts, before = StackCounts(self.statistics), self.statistics.copy()
        self._run(counts.add, seconds, count)
        counts.statistics = self.statistics.minus(before)
        return Profile(counts, self.meta)

    def record(
        self, path: str, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Sample into a file that ``read_recording`` and ``rbtrace-py report`` read.

        Raises OSError if it cannot be written.
        """
        statistics = self.statistics
        with RecordingWriter(path, self.meta, statistics) as writer:

            def add(sample: Sample) -> None:
                writer.add(sample)
                statistics.samples += 1
                statistics.flag(sample.flags)

            self._run(add, seconds, count)

    def _run(self, add: Add, seconds: float | None, count: int | None = None) -> None:
        # The statistics are of all that was sampled before, too.
        most = None if count is None else self.statistics.samples + count
        drive(SamplingPasses(self._sampling, add), Limits(seconds, most))

    def close(self) -> None:
        """Let go of the processes; may be called twice."""
        self._sampling.close()
        self._targets.close()


def count(samples: Iterable[Sample]) -> Profile:
    """Count samples that you chose, or changed: ``count(s for s in … if …)``."""
    return Profile(StackCounts().add_all(samples))


def read_recording(path: str, filters: Filters | None = None) -> Recorded:
    """Read a recording, all of it, or the samples that ``filters`` takes.

    Raises BadRecording, and OSError if it cannot be read.
    """
    return open_recorded(path, filters)


def fold(
    profile: Profile,
    *,
    lines: bool = False,
    threads: bool = False,
    states: bool = False,
    reverse: bool = False,
) -> Mapping[str, int]:
    """Weights by folded stack: ``{"<main> a.rb;Order#total b.rb": 42}``.

    lines: lines of a method apart; threads, states: these as outermost frames
    reverse: the innermost frame first
    """
    return folded_rows(profile.counts, Folding(lines, threads, states, reverse))


def formats() -> tuple[str, ...]:
    """What ``render`` takes: ``folded``, ``flamegraph``, ``speedscope`` …"""
    return tuple(FORMATS)


def render(
    profile: Profile,
    format_: str = "folded",
    *,
    lines: bool = False,
    threads: bool = False,
    states: bool = False,
    reverse: bool = False,
    title: str = "",
) -> bytes:
    """A profile in one of ``formats()``; text is UTF-8. Options as of ``fold``.

    Raises UsageError if there is no such format.
    """
    folding = Folding(lines, threads, states, reverse)
    file = io.BytesIO()
    format_named(format_).render(profile, ReportOptions(folding, title), file)
    return file.getvalue()


def dump(
    pid: int,
    *,
    fibers: bool = False,
    pause: bool = False,
    ruby_version: str | None = None,
) -> Dump:
    """All threads of a process and their stacks, once; ``fibers``: suspended ones too.

    Raises NoSuchTarget, NotPermitted, NotRuby, UnknownRuby, UnreadableMemory.
    """
    with Process(pid) as process:
        return _dump(process, DumpOptions(fibers, pause, ruby_version))


def dump_core(
    path: str,
    *,
    exe: str | None = None,
    fibers: bool = False,
    ruby_version: str | None = None,
    symbols: Mapping[str, int] | None = None,
) -> Dump:
    """All threads in a core file; ``exe`` is its program, or its libruby.

    symbols: addresses of symbols that the program lacks

    Raises BadElf, NotRuby, UnknownRuby, UnreadableMemory, and OSError.
    """
    options = CoreOptions(
        exe=exe,
        ruby_version=ruby_version,
        symbols=dict(symbols or {}),
        fibers=fibers,
    )
    return _dump_core(path, options)
