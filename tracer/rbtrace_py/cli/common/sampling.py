"""Helpers of the commands that sample: their options, and a sampling run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.on_events import CostNote, check_cost
from rbtrace_py.cli.common.option_fields import is_given, option
from rbtrace_py.cli.common.output import is_pipe
from rbtrace_py.cli.common.session_start import attached, say_ended, where
from rbtrace_py.cli.common.stop import Stop
from rbtrace_py.cli.common.ticker import Ticker
from rbtrace_py.errors import UsageError, loss_exit_code
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.weights import (
    NONE_ON_CPU,
    has_losses,
    progress,
    statistics_lines,
)
from rbtrace_py.report.units import format_count
from rbtrace_py.session.drive import drive
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.stacks.sampling_options import (
    MAX_RATE,
    EngineChoice,
    EventChoice,
    SamplingOptions,
)
from rbtrace_py.session.stacks.sampling_passes import sampling_passes
from rbtrace_py.session.targets.targets import Targets

_MODES = [mode for mode in SamplingMode if mode is not SamplingMode.EVENT]
"""Values of --mode; --on selects the other mode."""


def rate_option() -> Any:
    return option(
        "-r",
        "--rate",
        type=click.FloatRange(0, MAX_RATE, min_open=True),
        default=99.0,
        help="Samples per second.",
    )


def mode_option(default: str, after: str = "") -> Any:
    return option(
        "--mode",
        after=after,
        type=click.Choice([mode.value for mode in _MODES]),
        default=default,
        help="Sample threads on CPU, all threads with their states, threads that"
        " leave the CPU and for how long, or threads that hold the GVL.",
    )


class SampleOptions(o.StackOptions, o.LimitOptions):
    """Options of commands that sample, with limits."""

    rate: float = rate_option()
    mode: str = mode_option("cpu")
    min_us: float = option(
        "--min-us",
        type=click.FloatRange(0),
        default=0.0,
        show_default=False,
        metavar="US",
        help="With --mode offcpu: leave out shorter times off the CPU.",
    )
    engine: str = option(
        "--engine",
        type=click.Choice([engine.value for engine in EngineChoice]),
        default=EngineChoice.AUTO.value,
        help="Read stacks with a BPF program in the kernel, or from the target's"
        " memory.",
    )
    kernel: bool = option(
        "--kernel", help="Add the kernel's frames, marked _[k]. Needs the BPF engine."
    )
    gil: bool = option("--gil", hidden=True, help="py-spy's --mode gvl.")
    idle: bool | None = o.idle_option()

    @property
    def is_silent(self) -> bool:
        """True if the command prints nothing but the report."""
        return True

    @property
    def keeps_each(self) -> bool:
        """True if every sample is kept, with its time."""
        return False

    @property
    def event(self) -> EventChoice | None:
        """Event at which stacks are read; None if a mode is used."""
        return None

    @property
    def _kept_weight(self) -> int:
        """Minimum weight of samples that are kept individually.

        For times, it is half a period, so that there are no more samples than at the
        sampling rate. Some programs switch 100,000 times per second.
        """
        is_time = self.mode in ("wall", "offcpu", "gvl") and self.event is None
        return max(round(_SECOND_NS / (2 * self.rate)), 1) if is_time else 1

    @property
    def settings(self) -> SamplingOptions:
        self.check_nonblocking()
        event = self.event
        return SamplingOptions(
            rate=self.rate,
            mode=SamplingMode.EVENT if event else SamplingMode(self.mode),
            idle=self.idle is not False,
            pause=self.pause,
            ruby_version=self.ruby_version,
            saved=self.read_layout(),
            wait_seconds=self.duration,
            engine=EngineChoice(self.engine),
            is_counted=self.count is not None,
            each=self._kept_weight if self.keeps_each else 0,
            least_ns=round(self.min_us * 1000),
            event=event,
            kernel_frames=self.kernel,
        )


_SECOND_NS = 1_000_000_000

Sampled = TypeVar("Sampled", bound=SampleOptions)


class LossOptions(SampleOptions):
    """Options of commands that report how many samples failed."""

    max_loss: float = option(
        "--max-loss",
        after="ready_fd",
        type=click.FloatRange(0, 100),
        default=5.0,
        metavar="PERCENT",
        help="Exit with 5 if more than this share of samples failed.",
    )
    silent: bool = option("--silent", help="Hide progress and the final summary.")

    @property
    def is_silent(self) -> bool:
        return self.silent


def settled(options: Sampled) -> Sampled:
    """Replace ``--idle`` and ``--gil`` by the modes that they mean in py-spy.

    Raises:
        UsageError: The options cannot be combined.
    """
    gil, idle, mode = options.gil, options.idle, options.mode
    meant = "gvl" if gil else "wall" if idle and mode != "offcpu" else mode
    if (gil and idle) or (is_given("mode") and meant != mode):
        option = "--gil" if gil else "--idle"
        other = "--idle" if not is_given("mode") else f"--mode {mode}"
        raise UsageError(f"{option} and {other} cannot be combined")
    if options.min_us and meant != "offcpu":
        raise UsageError("--min-us needs --mode offcpu")
    return replace(options, mode=meant)


def sample(
    stack: ExitStack,
    targets: Targets,
    options: SampleOptions,
    sink: Callable[[Sampling], Add],
    on_interval: Callable[[], None] = lambda: None,
    goes_on: Callable[[], bool] = lambda: True,
    at_end: Callable[[], None] = lambda: None,
) -> Sampling:
    """Attach, and sample until a limit, a stop, or the end of the targets.

    Args:
        stack: Detaches when it exits.
        targets: Target processes.
        options: Options of the command.
        sink: Returns, for the attached sampling, the function that takes samples.
        on_interval: Called after each interval of --interval.
        goes_on: Called ten times per second; sampling stops if it returns false.
        at_end: Called before the final messages.

    Returns:
        The sampling, with its statistics.
    """
    stop = stack.enter_context(Stop())
    sampling = Sampling(targets, options.settings)
    ticker = _ticker(targets, options)
    sampling.stop, sampling.on_wait = stop.is_asked, ticker
    stack.enter_context(sampling)
    # Run time counts from here on. Only now may the command report that it is attached.
    passes = sampling_passes(sampling, sink(sampling))
    if not options.is_silent:
        warn(sampling)
    attached(sampling)
    said = len(sampling.notes)
    cost = CostNote(sampling, options.is_silent)

    def tick(seconds: float) -> None:
        cost.say(ticker.clear)
        ticker.say(f"{where(targets)}: {progress(sampling.statistics)}", seconds)
        if not goes_on():
            stop.ask()

    def interval() -> None:
        passes.settle()
        ticker.clear()
        on_interval()

    drive(passes, options.limits, stop.is_asked, tick, interval)
    ticker.end()
    cost.say()
    at_end()
    if sampling.is_over and not options.is_silent:
        say_ended(targets)
    for note in sampling.notes[said:]:
        say_note(note)
    return sampling


def _ticker(targets: Targets, options: SampleOptions) -> Ticker:
    # The program starts when its PID is first read: after the engine is loaded.
    is_ours = targets.command is not None
    target = "the program" if is_ours else where(targets)
    ticker = Ticker(f"waiting for Ruby in {target}", "stops", quiet=0.3)
    if options.is_silent or is_ours:
        ticker.mute()
    return ticker


def warn(sampling: Sampling) -> None:
    """Print warnings before sampling begins."""
    if sampling.options.pause:
        click.echo(
            "rbtrace-py: the target is paused each time its stacks are read", err=True
        )


def report(
    sampling: Sampling,
    options: LossOptions,
    render: Callable[[], None],
    is_said: bool,
) -> int:
    """Render the samples, print the statistics, and return the exit code.

    Args:
        sampling: The finished sampling.
        options: Options of the command.
        render: Function that writes the report.
        is_said: True if the report ends with the statistics. They are printed anyway if
            a closed pipe cut the report.
    """
    try:
        render()
    except BrokenPipeError:
        sum_up(sampling, options)
        raise
    return sum_up(sampling, options, is_said)


def sum_up(sampling: Sampling, options: LossOptions, is_said: bool = False) -> int:
    """Print the statistics, unless ``is_said``, and return the exit code.

    Args:
        sampling: The finished sampling.
        options: Options of the command.
        is_said: True if the report contained the statistics.

    Raises:
        RbtraceError: Sampling was ended because its events cost too much.
    """
    if not options.silent:
        tell(sampling, is_said)
    check_cost(sampling)
    own = sampling.statistics
    return loss_exit_code(own.samples, own.failed, options.max_loss)


def tell(sampling: Sampling, is_said: bool = False) -> None:
    """Print the statistics, unless the report contained them (``is_said``).

    Losses are printed again if the report goes into a pipe, because ``| head`` may cut
    it.
    """
    style = Style.for_stream(sys.stderr)
    counted = sampling.statistics
    if not is_said or (has_losses(counted) and is_pipe(sys.stdout)):
        for line in statistics_lines(counted, style):
            say_note(line.strip())
    if not counted.samples + counted.failed:
        _explain_none(sampling)
    if sampling.options.pause:
        stopped = f"{sampling.stopped_ns / 1e6:.1f} ms"
        say_note(f"targets were paused for {stopped} in total")


def _explain_none(sampling: Sampling) -> None:
    """Print the reason for an empty report, if it is known."""
    event, events = sampling.options.event, sampling.events
    if sampling.options.mode is SamplingMode.CPU:
        say_note(NONE_ON_CPU)
    elif event is not None and events is not None:
        if events.cost.hits:
            text = f"no thread had {format_count(event.every)} events: lower --every"
        else:
            text = f"{event.word}: no event was seen"
        say_note(text)


def name_now(targets: Targets) -> str:
    """Return a name for unnamed files: ``rbtrace-1234-20260131-101500``."""
    clock = time.strftime("%Y%m%d-%H%M%S")
    return f"rbtrace-{targets.pids[0]}-{clock}"
