"""``record``: samples in a file, for later reports."""

from __future__ import annotations

import time
from contextlib import ExitStack

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common import sampling as s
from rbtrace_py.cli.common.messages import say, say_note, say_wrote
from rbtrace_py.cli.common.on_events import OnOptions, check_on
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.output import cannot_write
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.writable import check_folder
from rbtrace_py.errors import UsageError
from rbtrace_py.model.stacks import Sample
from rbtrace_py.recording.sample_recording import EXTENSION, RecordingWriter
from rbtrace_py.report.file_formats import RECORDING, described
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.targets.targets import Targets


class _Options(
    OnOptions,
    s.LossOptions,
    r.ReportingOptions,
    o.LimitOptions,
    o.YesOption,
    r.ReportOutputOption,
):
    mode: str = s.mode_option("wall", after="rate")
    append: bool = option(
        "-a", "--append", after="title", help="Append to an existing recording."
    )

    @property
    def keeps_each(self) -> bool:
        return self.format_ == RECORDING


@target_command("record", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Record the Ruby stacks of a running process to a file.

    Every sample is kept with its time, thread and state; `rbtrace-py report`
    converts the recording to any format. With --format, or a file name of another
    format (-o shop.svg), the result is written in that format at the end instead.
    However the command ends, at most the last two seconds of a recording are
    missing.

    \b
    Examples:
      rbtrace-py record 1234                        until Ctrl-C
      rbtrace-py record 1234 -d 30 -o shop.rbrec
      rbtrace-py record 1234 --on ruby:raise        a sample at each exception
      rbtrace-py record 1234 -d 30 -o shop.svg      a flame graph
      sudo rbtrace-py record -- bundle exec rake    runs as your own user
      rbtrace-py report shop.rbrec --format speedscope
    """
    if words:
        raise UsageError(f"too many arguments: {words[0]!r}", "Name the file with -o")
    check_on(options)
    if options.weight is not None and options.on is None:
        raise UsageError("--weight needs --on")
    is_named = options.format_ is None
    options = r.settled(s.settled(options), RECORDING)
    if options.format_ == RECORDING:
        return record(targets, options, options.output, options.append)
    form = described(str(options.format_))
    if options.append:
        raise UsageError(f"--append works on recordings, not on {form}")
    if is_named and not options.silent:
        say(
            f"{options.output} will be {form}; to keep"
            f" every sample, use a name that ends in {EXTENSION}"
        )
    with ExitStack() as stack:
        return _report(stack, targets, options)


def record(
    targets: Targets, options: s.LossOptions, output: str | None, append: bool = False
) -> int:
    """Sample into a recording, and return the exit code."""
    if not output:
        check_folder()
    with ExitStack() as stack:
        return _record(stack, targets, options, output or "", append)


def _record(
    stack: ExitStack,
    targets: Targets,
    options: s.LossOptions,
    path: str,
    append: bool,
) -> int:
    """Record as ``record`` does. Without a path, the process names the file."""
    writers: list[RecordingWriter] = []

    def sink(sampling: Sampling) -> Add:
        nonlocal path
        path = path or s.name_now(targets) + EXTENSION
        try:
            writer = RecordingWriter(path, sampling.meta, sampling.statistics, append)
        except OSError as error:
            raise cannot_write(path, error) from error
        writers.append(stack.enter_context(writer))
        if writer.follows_cut:
            say_note(
                f"{path} was cut off: the samples after its last block are missing"
            )
        return _counted(writer, sampling.statistics)

    def goes_on() -> bool:
        # Flush here, because a sleeping program may deliver its next sample much later.
        for writer in writers:
            writer.flush_if_due(time.time_ns())
        return True

    try:
        sampling = s.sample(stack, targets, options, sink, goes_on=goes_on)
        stack.close()
    except OSError as error:
        raise cannot_write(path, error) from error
    if not options.silent:
        say_wrote(path)
    return s.sum_up(sampling, options)


def _counted(writer: RecordingWriter, statistics: Statistics) -> Add:
    write = writer.add

    def add(sample: Sample) -> None:
        write(sample)
        statistics.samples += 1
        if sample.flags:
            statistics.flag(sample.flags)

    return add


def _report(stack: ExitStack, targets: Targets, options: _Options) -> int:
    """Write the report in the format of ``--format`` directly, without a recording."""
    found: list[StackCounts] = []

    def sink(sampling: Sampling) -> Add:
        found.append(StackCounts(sampling.statistics))
        return found[0].add

    sampling = s.sample(stack, targets, options, sink)
    profile = Profile(found[0], sampling.meta)

    def render() -> None:
        r.render(profile, options, s.name_now(targets))

    return s.report(sampling, options, render, options.says_losses)
