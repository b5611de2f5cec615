"""``--on``: stacks at events instead of at fixed times. Its options, and its cost."""

from __future__ import annotations

from collections.abc import Callable

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.option_fields import is_given, option
from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.report.units import format_count, span
from rbtrace_py.session.stacks.event_cost import MOST_SHARE, EventCost
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EventChoice

_NOT_WITH_ON = ("mode", "gil", "idle", "rate")


class OnOptions(o.YesOption):
    """Options of commands that read stacks at events."""

    on: str | None = option(
        "--on",
        after="silent",
        metavar="EVENT",
        help="Read a stack at each EVENT instead: a probe, uprobe:LIB:SYMBOL,"
        " tracepoint:CATEGORY:NAME or syscall:NAME.",
    )
    every: int = option(
        "--every",
        type=click.IntRange(1, 1 << 30),
        default=1,
        metavar="N",
        help="With --on: only at each Nth event of a thread, which weighs N events.",
    )
    weight: str | None = option(
        "--weight",
        metavar="WEIGHT",
        help="Weight of a stack. With --on: an integer argument of the event. With"
        " `stacks --calls`: time (self time in ns, the default) or calls.",
    )
    weight_unit: str | None = option(
        "--unit",
        type=click.Choice(["bytes", "ns"]),
        help="Unit of the argument that --weight names. Default: ns if its name ends in"
        " _ns, else none.",
    )

    @property
    def event(self) -> EventChoice | None:
        if self.on is None:
            return None
        return EventChoice(
            self.on, self.every, self.weight, self.confirm, self.yes, self.weight_unit
        )


def check_on(options: OnOptions) -> None:
    """Raise UsageError for options that cannot be combined with --on."""
    for name, word in (("on", options.on), ("weight", options.weight)):
        if word == "":
            raise UsageError(f"--{name} is empty")
    if options.weight_unit and not (options.on and options.weight):
        raise UsageError("--unit needs --on and --weight")
    if options.on is None:
        if options.every != 1:
            raise UsageError("--every needs --on")
        return
    for name in _NOT_WITH_ON:
        if is_given(name):
            raise UsageError(f"--on and --{name} cannot be combined")


class CostNote:
    """Note about the cost of the events, printed once it is known."""

    def __init__(self, sampling: Sampling, is_silent: bool) -> None:
        self._sampling = sampling
        self._is_said = is_silent

    def say(self, clear: Callable[[], object] = lambda: None) -> None:
        """Print the note, if its cost is known and it was not printed before.

        Args:
            clear: Function that clears the current line of the terminal first.
        """
        event, events = self._sampling.options.event, self._sampling.events
        if self._is_said or event is None or events is None or not events.cost.is_known:
            return
        self._is_said = True
        clear()
        cost = events.cost
        rate = format_count(round(cost.hits / cost.seconds))
        say_note(
            f"{event.word}: {rate} events per second at {_each(cost)} each take"
            f" {100 * cost.share:.1f} % of a CPU"
        )


def check_cost(sampling: Sampling) -> None:
    """Raise RbtraceError if sampling was ended because the events cost too much."""
    event, events = sampling.options.event, sampling.events
    if event is None or events is None or not events.is_too_costly:
        return
    cost = events.cost
    raise RbtraceError(
        f"{event.word} was detached after {format_count(cost.hits)} events in"
        f" {span(round(cost.seconds * 1e9))}: at {_each(cost)} each they take more than"
        f" {100 * MOST_SHARE:g} % of a CPU",
        "Read fewer stacks with --every, or accept the cost with --yes",
    )


def _each(cost: EventCost) -> str:
    return f"{cost.ns_each / 1000:.1f} µs"
