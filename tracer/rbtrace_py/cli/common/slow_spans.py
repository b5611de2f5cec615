"""Helpers of ``latency --slower-than``: its options, and the stacks of slow spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rbtrace_py.cli.common import method_events as m
from rbtrace_py.cli.common.option_fields import is_given, option
from rbtrace_py.cli.common.parameter_types import Milliseconds
from rbtrace_py.cli.common.sampling import rate_option
from rbtrace_py.cli.common.writable import WritableFile
from rbtrace_py.errors import UsageError
from rbtrace_py.report.file_formats import RECORDING, described, format_of_file
from rbtrace_py.report.style import Style
from rbtrace_py.report.units import duration
from rbtrace_py.session.stacks.sampling_options import MAX_KERNEL_RATE
from rbtrace_py.session.targets.targets import Targets

if TYPE_CHECKING:
    from rbtrace_py.session.stacks.slow_latency import SlowLatency, SlowOptions

_EXEMPLARS = 5
_METHOD = {"method", ":method"}
_MOST_EXEMPLARS = 1000


class SlowSpanOptions(m.TableOptions):
    """Options of ``latency --slower-than``."""

    slower_than: float | None = option(
        "--slower-than",
        after="top",
        type=Milliseconds(),
        metavar="MS",
        help="Also show where spans of at least MS milliseconds (50, 50ms, 0.05s)"
        " spend their time, on CPU and off. Needs root.",
    )
    stacks: str | None = option(
        "--stacks",
        type=WritableFile(),
        metavar="FILE",
        help="With --slower-than: write the stacks of the slow spans, weighted by time,"
        " to FILE: .svg is a flame graph; .json, .pb.gz, .callgrind, .folded as in"
        " `stacks`.",
    )
    exemplars: int = option(
        "--exemplars",
        type=click.IntRange(0, _MOST_EXEMPLARS),
        metavar="N",
        default=_EXEMPLARS,
        help="With --slower-than: show the N slowest spans, their arguments and where"
        " their time went.",
    )
    timeline: str | None = option(
        "--timeline",
        type=WritableFile(),
        metavar="FILE",
        help="With --slower-than: write what these spans did when, as a trace for"
        " ui.perfetto.dev, to FILE.",
    )
    rate: float = rate_option()

    @property
    def slow(self) -> SlowOptions | None:
        """Options for slow spans, or None without ``--slower-than``.

        Raises:
            UsageError: The options cannot be combined.
        """
        from rbtrace_py.session.stacks.slow_latency import SlowOptions

        if self.slower_than is None:
            for name in ("stacks", "exemplars", "timeline", "rate"):
                if is_given(name):
                    raise UsageError(f"--{name} needs --slower-than")
            return None
        self._check()
        return SlowOptions(
            round(self.slower_than * 1e6),
            self.rate,
            self.exemplars,
            keeps_times=self.timeline is not None,
        )

    def _check(self) -> None:
        refused = {
            "-m": self.selectors,
            "--c-calls": self.c_calls,
            "--attach": self.attaches,
            "--via agent": self.via == "agent",
            "--interval": self.interval,
            f"--rate above {MAX_KERNEL_RATE:g}": self.rate > MAX_KERNEL_RATE,
        }
        for name, value in refused.items():
            if value:
                raise UsageError(f"{name} and --slower-than cannot be combined")
        if self.timeline is not None and not self.exemplars:
            raise UsageError("--timeline and --exemplars 0 cannot be combined")
        if self.stacks is not None:
            _check_format(self.stacks)


def _check_format(path: str) -> None:
    """Raise UsageError for a file whose format cannot contain slow spans."""
    found = format_of_file(path)
    hint = "Name a file .svg, .json, .pb.gz, .callgrind or .folded"
    if found is None:
        raise UsageError(f"--stacks {path}: unknown extension", hint)
    if found == RECORDING:
        raise UsageError(f"--stacks cannot write {described(found)}: {path}", hint)


def slow_session(
    targets: Targets,
    words: tuple[str, ...],
    options: SlowSpanOptions,
    slow: SlowOptions,
) -> SlowLatency:
    """Return the session that measures slow spans."""
    from rbtrace_py.session.stacks.slow_latency import SlowLatency

    if _METHOD & set(words):
        raise UsageError(
            "method is timed by the agent, and --slower-than needs a span",
            "See `rbtrace-py calls --slow` for slow methods",
        )
    return SlowLatency(targets, words, options.probe_options, slow)


def write_stacks(session: SlowLatency, options: SlowSpanOptions) -> None:
    """Write ``--stacks``, if it is given."""
    if options.stacks is None or options.slower_than is None:
        return
    # Import late: only this function needs these modules.
    from rbtrace_py.cli.common import rendering as r

    least = duration(round(options.slower_than * 1e6), Style())
    reporting = r.ReportingOptions(
        format_=format_of_file(options.stacks),
        lines=False,
        threads=False,
        states=False,
        reverse=False,
        rows=None,
        sort="self",
        title=f"{', '.join(session.series)} from {least}",
        idle=True,
        output=options.stacks,
    )
    r.render(session.profile, reporting, "")


def write_timeline(session: SlowLatency, options: SlowSpanOptions) -> None:
    """Write ``--timeline``, if it is given."""
    if options.timeline is None:
        return
    from rbtrace_py.cli.common.rendering import destination
    from rbtrace_py.report.exchange.slow_timeline import slow_timeline_pieces

    with destination(options.timeline, "") as file:
        for piece in slow_timeline_pieces(session.exemplars):
            file.write(piece)
