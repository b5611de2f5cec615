"""``stacks``: where is the time going?"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import click

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.cli.common import method_events as m
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common import sampling as s
from rbtrace_py.cli.common.call_stacks import fold_calls
from rbtrace_py.cli.record import record
from rbtrace_py.errors import UsageError
from rbtrace_py.report.file_formats import RECORDING
from rbtrace_py.report.formats import FORMATS, Format
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.targets.targets import Targets


@click.command("stacks", options_metavar="[OPTIONS]")
@o.takes_only_target
@s.sampling_options("cpu")
@r.format_option
@r.lines_option
@r.threads_option
@r.states_option
@r.reverse_option
@r.title_option
@o.interval_option
@o.limit_options
@s.loss_options
@click.option(
    "--calls",
    is_flag=True,
    help="Trace every call with the agent's hook instead of sampling.",
)
@click.option(
    "--weight",
    type=click.Choice(["time", "calls"]),
    default="time",
    show_default=True,
    help="With --calls: weight stacks by self time in ns, or by calls.",
)
@m.selecting_options
@o.attach_option
@o.yes_option
@o.report_output_option
def command(targets: Targets, words: tuple[str, ...], **values: Any) -> int:
    """Sample the Ruby stacks of a running process and print them, folded.

    Sampling needs no gem and no BPF: memory is read without pausing the process.
    Ctrl-C stops and prints the result. --count counts samples. Without --format,
    the extension of the output file selects the format: .svg is a flame graph,
    .json speedscope, .pb.gz and .pprof pprof, .callgrind callgrind, .folded and
    .txt folded, .rbrec a recording. Flame graphs, speedscope, pprof and callgrind
    go to a file unless -o names one (- is standard output).

    --calls asks the agent in the process for every entry and return instead: call
    trees with exact counts and times, in the same formats.

    \b
    Examples:
      rbtrace-py stacks 1234                        on Ctrl-C: a line per stack
      rbtrace-py stacks 1234 -d 10 --format summary
      rbtrace-py stacks 1234 --mode wall --threads --no-idle
      rbtrace-py stacks 1234 -d 30 -o shop.svg      a flame graph
      rbtrace-py stacks --subprocesses --ps '^puma [0-9]' -d 10
      rbtrace-py stacks 1234 --calls -m 'Order#' -d 10 --weight calls
      rbtrace-py stacks -- ruby script.rb
    """
    if words:
        raise UsageError(
            f"too many arguments: {words[0]!r}", "See --format for report formats"
        )
    s.settle_mode(values)
    is_recording = r.choose_format(values, "folded") == RECORDING
    if is_recording and (values["calls"] or values["interval"]):
        raise UsageError(
            "--calls cannot write a recording of samples",
            "Record calls with `rbtrace-py calls PID -o FILE.rbrec`",
        )
    if values["calls"]:
        m.attach_first(targets, values)
        return fold_calls(targets, values, lambda: s.name_now(targets))
    if values["selectors"] or values["c_calls"] or values["attaches"]:
        raise UsageError("-m, --c-calls and --attach need --calls")
    if values["interval"] and values["output"] and not _format_of(values).is_text:
        raise UsageError(
            f"{values['format_']} needs a file for each interval", "Leave out -o"
        )
    if values["mode"] != "cpu":
        values["states"] = True
    if is_recording:
        return record(targets, {**values, "append": False})
    with ExitStack() as stack:
        counting = _Counting(targets, values)
        sampling = s.sample(stack, targets, values, counting.sink, counting.interval)
        if values["interval"]:
            return s.sum_up(sampling, values)
        is_said = r.says_losses(values)
        return s.report(sampling, values, counting.render, is_said)


def _format_of(values: dict[str, Any]) -> Format:
    return FORMATS[values["format_"]]


class _Counting:
    """Counts samples, and renders them when it is time."""

    def __init__(self, targets: Targets, values: dict[str, Any]) -> None:
        self._values = values
        self._stem = s.name_now(targets)
        self._before: StackCounts | None = None
        self._intervals = 0

    def sink(self, sampling: Sampling) -> Add:
        self._sampling = sampling
        self._counts = StackCounts(sampling.statistics)
        return self._counts.add

    def interval(self) -> None:
        """Render what came since the last one: below that, or to a file of its own."""
        self._intervals += 1
        counts, values = self._counts, self._values
        came = counts if self._before is None else counts.minus(self._before)
        if _format_of(values).says_losses:
            title = f"{values['title']} {time.strftime('%H:%M:%S')}".strip()
            values = {**values, "title": title}
        stem = f"{self._stem}-{self._intervals}"
        self._render(came, values, stem, append=self._intervals > 1)
        self._before = counts.snapshot()

    def render(self) -> None:
        """Render all there is."""
        self._render(self._counts, self._values, self._stem)

    def _render(
        self,
        counts: StackCounts,
        values: dict[str, Any],
        stem: str,
        append: bool = False,
    ) -> None:
        profile = Profile(counts, self._sampling.meta)
        r.render(profile, values["format_"], values, stem, append=append)
