"""Stacks: samples, profiles, recordings, dumps."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.errors import (
    UsageError,
)
from rbtrace_py.library.targets import Pids, pid_list
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process
from rbtrace_py.model.dump import Dump
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.model.stacks import (
    RubyThread,
    Sample,
    SampleFlags,
)
from rbtrace_py.recording.sample_recording import RecordingWriter
from rbtrace_py.report.exchange.folded import folded_rows
from rbtrace_py.report.exchange.rows import Folding
from rbtrace_py.report.formats import FORMATS, format_named
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.terminal.weights import quality_lines
from rbtrace_py.session.drive import drive, turns
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.stacks.cores import CoreOptions
from rbtrace_py.session.stacks.cores import dump_core as _dump_core
from rbtrace_py.session.stacks.dump import DumpOptions
from rbtrace_py.session.stacks.dump import dump as _dump
from rbtrace_py.session.stacks.ruby_process import MEMORY_MODES, SamplingMode
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.stacks.sampling_options import SamplingOptions
from rbtrace_py.session.stacks.sampling_passes import SamplingPasses
from rbtrace_py.session.targets.targets import Targets


def attach(
    pids: Pids,
    *,
    rate: float = 99.0,
    mode: str = "cpu",
    idle: bool = True,
    subprocesses: bool = False,
    pause: bool = False,
    ruby_version: str | None = None,
) -> Sampler:
    """Attach to running Ruby processes, to sample their stacks.

    Args:
        pids: One process or several.
        rate: Samples per second.
        mode: ``cpu`` for threads on a CPU, or ``wall`` for all threads, each with its
            state.
        idle: Include sleeping threads in mode wall.
        subprocesses: Include child processes, also those that start later.
        pause: Pause a process while its stacks are read.
        ruby_version: Use the layout of this Ruby (``3.2``), whatever version the
            processes report.

    Returns:
        A ``Sampler`` to use in ``with``.

    Raises:
        NoSuchTarget: A process does not exist.
        NotPermitted: The kernel denies permission. The hint says what is missing.
        NotRuby: A process does not run Ruby.
        UnknownRuby: The layout of this Ruby is unknown.
        UsageError: The mode is unknown, or no process is given.
    """
    modes = [one.value for one in MEMORY_MODES]
    if mode not in modes:
        raise UsageError(f"unknown mode: {mode}", f"Use one of {', '.join(modes)}")
    options = SamplingOptions(rate, SamplingMode(mode), idle, pause, ruby_version)
    return Sampler(Targets.from_pids(pid_list(pids), subprocesses), options)


class Sampler(Closing):
    """Attached processes; made by ``attach``, and closed at the end of ``with``.

    Sampling does not change the processes.
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
        """Return the numbers of samples so far, and of late and failed samples."""
        return self._sampling.statistics

    @property
    def meta(self) -> Meta:
        """Processes, Ruby versions, rate, and mode."""
        return self._sampling.meta

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user, one per line, with lateness and losses so far."""
        losses = (line.strip() for line in quality_lines(self.statistics))
        return (*self._sampling.notes, *losses)

    @property
    def threads(self) -> tuple[RubyThread, ...]:
        """All Ruby threads, at most a tenth of a second old."""
        return tuple(one for ruby in self._sampling.rubies for one in ruby.threads)

    @property
    def is_over(self) -> bool:
        """True if all processes have ended."""
        return self._sampling.is_over

    def samples(
        self, seconds: float | None = None, count: int | None = None
    ) -> Iterator[Sample]:
        """Sample, and yield the stack of each thread, in order of time.

        Samples arrive up to a tenth of a second late. Sampling stops while the calling
        program processes a sample, so defer slow work.

        Args:
            seconds: Stop after this many seconds.
            count: Stop after this many samples. Without either, it stops when all
                processes have ended.
        """
        if count == 0:
            return
        found: list[Sample] = []
        passes = SamplingPasses(self._sampling, found.append)
        left = count
        for _ in turns(passes, self._limits(seconds, count)):
            passes.settle()
            came, found[:] = tuple(found), []
            for sample in came:
                if left is not None and not sample.flags & SampleFlags.RUN_TIME:
                    if not left:
                        continue
                    left -= 1
                self.statistics.samples += 1
                self.statistics.flag(sample.flags)
                yield sample

    def profile(
        self, seconds: float | None = None, count: int | None = None
    ) -> Profile:
        """Sample, and count equal stacks. This takes less work than ``samples``.

        Args:
            seconds: Stop after this many seconds.
            count: Stop after this many samples.
        """
        counts, before = StackCounts(self.statistics), self.statistics.copy()
        self._run(counts.add, seconds, count)
        counts.statistics = self.statistics.minus(before)
        return Profile(counts, self.meta)

    def record(
        self, path: str, seconds: float | None = None, count: int | None = None
    ) -> None:
        """Sample into a file that ``read_recording`` and ``rbtrace-py report`` read.

        Args:
            path: Output file.
            seconds: Stop after this many seconds.
            count: Stop after this many samples.

        Raises:
            OSError: The file cannot be written.
        """
        statistics = self.statistics
        with RecordingWriter(path, self.meta, statistics) as writer:

            def add(sample: Sample) -> None:
                writer.add(sample)
                statistics.samples += 1
                statistics.flag(sample.flags)

            self._run(add, seconds, count)

    def _run(self, add: Add, seconds: float | None, count: int | None = None) -> None:
        drive(SamplingPasses(self._sampling, add), self._limits(seconds, count))

    def _limits(self, seconds: float | None, count: int | None) -> Limits:
        # The statistics include all earlier samples.
        most = None if count is None else self.statistics.samples + count
        return Limits(seconds, most)

    def close(self) -> None:
        """Release the processes. A second call does nothing."""
        self._sampling.close()
        self._targets.close()


def count_samples(samples: Iterable[Sample]) -> Profile:
    """Count samples that you selected or changed. Their weights are nanoseconds.

    Args:
        samples: ``count_samples(s for s in sampler.samples(seconds=1) if …)``.
    """
    return Profile(StackCounts(Statistics("ns")).add_all(samples))


def fold(
    profile: Profile,
    *,
    lines: bool = False,
    threads: bool = False,
    states: bool = False,
    reverse: bool = False,
) -> Mapping[str, int]:
    """Return weights by folded stack: ``{"<main> a.rb;Order#total b.rb": 42}``.

    Args:
        profile: Counted samples.
        lines: Distinguish lines of a method.
        threads: Add threads as outermost frames.
        states: Add states of threads as outermost frames.
        reverse: Put the innermost frame first.
    """
    return folded_rows(profile.counts, Folding(lines, threads, states, reverse))


def formats() -> tuple[str, ...]:
    """Return the formats of ``render``: ``folded``, ``flamegraph`` and others."""
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
    """Return a profile in one of ``formats()``. Text is UTF-8.

    Args:
        profile: Counted samples.
        format_: One of ``formats()``.
        lines: Distinguish lines of a method.
        threads: Add threads as outermost frames.
        states: Add states of threads as outermost frames.
        reverse: Put the innermost frame first.
        title: Title of the report.

    Raises:
        UsageError: The format is unknown.
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
    locals: bool = False,  # noqa: A002 -- the option's name
) -> Dump:
    """Return all threads of a process and their stacks, once.

    Args:
        pid: Process ID.
        fibers: Include suspended fibers.
        pause: Pause the process while its stacks are read.
        ruby_version: Use the layout of this Ruby (``3.2``), whatever version the
            process reports.
        locals: Read arguments and local variables. No method of the program is called.

    Raises:
        NoSuchTarget: The process does not exist.
        NotPermitted: The kernel denies permission. The hint says what is missing.
        NotRuby: The process does not run Ruby.
        UnknownRuby: The layout of this Ruby is unknown.
    """
    options = DumpOptions(fibers, pause, ruby_version, locals=locals)
    with Process(pid) as process:
        return _dump(process, options)


def dump_core(
    path: str,
    *,
    exe: str | None = None,
    fibers: bool = False,
    ruby_version: str | None = None,
    symbols: Mapping[str, int] | None = None,
    locals: bool = False,  # noqa: A002 -- the option's name
) -> Dump:
    """Return all threads in a core file and their stacks.

    Args:
        path: Core file.
        exe: Program of the core, or its libruby.
        fibers: Include suspended fibers.
        ruby_version: Use the layout of this Ruby (``3.2``), whatever version the core
            reports.
        symbols: Addresses of symbols that the program lacks.
        locals: Read arguments and local variables.

    Raises:
        NotRuby: The core's process did not run Ruby.
        UnknownRuby: The layout of this Ruby is unknown.
        RbtraceError: The file is not a core, or lacks memory.
        OSError: The file cannot be read.
    """
    options = CoreOptions(
        exe=exe,
        ruby_version=ruby_version,
        symbols=dict(symbols or {}),
        fibers=fibers,
        locals=locals,
    )
    return _dump_core(path, options)
