"""``stacks``: the time of methods and stacks, by sampling."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import replace

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common import sampling as s
from rbtrace_py.cli.common.folding_options import FoldingOptions
from rbtrace_py.cli.common.on_events import check_on
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.selecting import attach_first
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.record import record
from rbtrace_py.errors import UsageError
from rbtrace_py.report.file_formats import RECORDING
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.targets.targets import Targets


class _Options(FoldingOptions):
    calls: bool = option(
        "--calls",
        after="silent",
        help="Trace every call with the agent's hook instead of sampling.",
    )

    @property
    def keeps_each(self) -> bool:
        return self.format_ == RECORDING


@target_command("stacks", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Sample the Ruby stacks of a running process.

    Sampling needs no gem, and the process is not paused. As root, a BPF program in
    the kernel walks the stacks; without the rights, the process's memory is read.
    --engine chooses.
    Ctrl-C stops and prints the result: a summary on a terminal, else folded stacks.
    --count counts samples. Without --format, the extension of the output file
    selects the format: .svg is a flame graph, .json speedscope, .pb.gz and .pprof
    pprof, .callgrind callgrind, .folded and .txt folded, .rbrec a recording. Flame
    graphs, speedscope, pprof and callgrind go to a file unless -o names one (- is
    standard output).

    --on reads a stack at each event instead: who allocates, raises, writes. See
    docs/stacks-at-events.md.

    --calls asks the agent in the process for every entry and return instead: call
    trees with exact counts and times, in the same formats.

    \b
    Examples:
      rbtrace-py stacks 1234                        on Ctrl-C: a summary
      rbtrace-py stacks 1234 -d 10 > stacks.txt     folded: a line per stack
      rbtrace-py stacks 1234 --mode wall --threads --no-idle
      rbtrace-py stacks 1234 -d 30 -o shop.svg      a flame graph
      rbtrace-py stacks --subprocesses --ps '^puma [0-9]' -d 10
      rbtrace-py stacks 1234 --calls -m 'Order#' -d 10 --weight calls
      rbtrace-py stacks 1234 --on syscall:write --weight count
      rbtrace-py stacks -- ruby script.rb
    """
    if words:
        raise UsageError(
            f"too many arguments: {words[0]!r}", "See --format for report formats"
        )
    default = "summary" if sys.stdout.isatty() and not options.output else "folded"
    options = r.settled(s.settled(options), default)
    is_recording = options.format_ == RECORDING
    if is_recording and (options.calls or options.interval):
        raise UsageError(
            "--calls cannot write a recording of samples",
            "Record calls with `rbtrace-py calls PID -o FILE.rbrec`",
        )
    check_on(options)
    _check_calls(options)
    if options.calls:
        # Import late: sampling does not need the agent's modules.
        from rbtrace_py.cli.common.call_stacks import fold_calls

        attach_first(targets, options)
        return fold_calls(targets, options, lambda: s.name_now(targets))
    if options.selectors or options.c_calls or options.attaches:
        raise UsageError("-m, --c-calls and --attach need --calls")
    if options.interval and options.output and not options.format.is_text:
        raise UsageError(
            f"{options.format_} needs a file for each interval", "Leave out -o"
        )
    if options.mode != "cpu":
        options = replace(options, states=True)
    if is_recording:
        return record(targets, options, options.output)
    with ExitStack() as stack:
        counting = _Counting(targets, options)
        sampling = s.sample(stack, targets, options, counting.sink, counting.interval)
        if options.interval:
            return s.sum_up(sampling, options)
        return s.report(sampling, options, counting.render, options.says_losses)


def _check_calls(options: _Options) -> None:
    weight = options.weight
    if options.calls and (options.on is not None or options.kernel):
        word = "--kernel" if options.on is None else "--on"
        raise UsageError(f"--calls and {word} cannot be combined")
    if weight is not None and not (options.calls or options.on):
        raise UsageError("--weight needs --on or --calls")
    if options.calls and weight not in (None, "time", "calls"):
        raise UsageError(f"unknown weight for --calls: {weight}", "Use time or calls")


class _Counting:
    """Counter of samples that renders them at intervals."""

    def __init__(self, targets: Targets, options: _Options) -> None:
        self._targets = targets
        self._options = options
        self._before: StackCounts | None = None
        self._intervals = 0

    def sink(self, sampling: Sampling) -> Add:
        self._sampling = sampling
        self._stem = s.name_now(self._targets)
        self._counts = StackCounts(sampling.statistics)
        return self._counts.add

    def interval(self) -> None:
        """Render the samples since the last interval, below it or into a new file."""
        self._intervals += 1
        counts, options = self._counts, self._options
        came = counts if self._before is None else counts.minus(self._before)
        if options.format.says_losses:
            title = f"{options.title} {time.strftime('%H:%M:%S')}".strip()
            options = replace(options, title=title)
        stem = f"{self._stem}-{self._intervals}"
        self._render(came, options, stem, append=self._intervals > 1)
        self._before = counts.snapshot()

    def render(self) -> None:
        """Render all counted samples."""
        self._render(self._counts, self._options, self._stem)

    def _render(
        self,
        counts: StackCounts,
        options: _Options,
        stem: str,
        append: bool = False,
    ) -> None:
        profile = Profile(counts, self._sampling.meta)
        r.render(profile, options, stem, append=append)
