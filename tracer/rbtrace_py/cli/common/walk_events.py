"""``--on``: stacks at events instead of in time. Its options, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.output import say_note
from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.report.units import format_count, span
from rbtrace_py.session.stacks.events import MOST_SHARE, EventCost
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EventOptions

_NOT_WITH_ON = ("mode", "gil", "idle", "rate")


@dataclass(frozen=True, eq=False, repr=False)
class OnOptions(o.YesOption):
    """``on_options`` and ``weight_option``."""

    on: str | None
    every: int
    weight: str | None

    @property
    def event(self) -> EventOptions | None:
        if self.on is None:
            return None
        return EventOptions(self.on, self.every, self.weight, self.confirm, self.yes)


on_options = o.chain(
    click.option(
        "--on",
        metavar="EVENT",
        help="Read a stack at each hit of a probe instead.",
    ),
    click.option(
        "--every",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="N",
        help="With --on: only at each Nth event of a thread, which weighs N events.",
    ),
)


def check_on(options: OnOptions) -> None:
    """Raise UsageError for what --on is not combined with."""
    if options.on is None:
        if options.every != 1:
            raise UsageError("--every needs --on")
        return
    context = click.get_current_context()
    for name in _NOT_WITH_ON:
        source = context.get_parameter_source(name)
        if source not in (None, click.core.ParameterSource.DEFAULT):
            raise UsageError(f"--on and --{name} cannot be combined")


class CostWatch:
    """Says what the events of a sampling cost, once that is known."""

    def __init__(self, options: OnOptions) -> None:
        self._options = options
        self._cost: EventCost | None = None
        self._is_said = False

    def watch(self, sampling: Sampling) -> None:
        self._cost = sampling.event_cost

    def goes_on(self) -> bool:
        """Say it once; always True: the sampling ends by itself."""
        cost = self._cost
        if cost is not None and cost.is_known and not self._is_said:
            self._is_said = True
            say_note(self._line(cost))
        return True

    def _line(self, cost: EventCost) -> str:
        rate = cost.hits / cost.seconds if cost.seconds else 0.0
        each = f"{cost.ns_each / 1000:.1f} µs"
        return (
            f"{self._options.on}: {format_count(round(rate))} events per second at"
            f" {each} each take {100 * cost.share:.1f} % of a CPU"
        )

    def check(self) -> None:
        """Raise RbtraceError if it was too much, and was therefore ended."""
        cost = self._cost
        if cost is None or not cost.is_too_high or self._options.yes:
            return
        raise RbtraceError(
            f"{self._options.on} was detached after {format_count(cost.hits)} events"
            f" in {span(round(cost.seconds * 1e9))}: at {cost.ns_each / 1000:.1f} µs"
            f" each they take more than {100 * MOST_SHARE:g} % of a CPU",
            "Read fewer stacks with --every, or agree to the cost with --yes",
        )
