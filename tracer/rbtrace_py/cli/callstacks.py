"""``stacks --calls``: call trees with exact counts and times, from the agent's hook."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

import click

from rbtrace_py.aggregate.callfold import CallFold
from rbtrace_py.aggregate.meta import Meta
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.cli import options as o
from rbtrace_py.cli import rendering as r
from rbtrace_py.cli.output import Ticker, attached
from rbtrace_py.cli.stop import Stop
from rbtrace_py.report.amounts import amount
from rbtrace_py.report.notes import counter_lines, lost
from rbtrace_py.report.style import Style
from rbtrace_py.session.calls import Calls, CallsOptions
from rbtrace_py.session.limits import REFRESH_SECONDS
from rbtrace_py.session.selectors import selectors_of
from rbtrace_py.session.targets import Targets

TOO_MUCH_LOST = 5


def fold_calls(targets: Targets, values: dict[str, Any], stem: str) -> int:
    """See the module; the exit code."""
    agree = o.options_of(values).agree
    assert agree is not None
    options = CallsOptions(
        select=selectors_of(values["selectors"], ()),
        c_calls=values["c_calls"],
        gc=True,
        agree=agree,
    )
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        session = stack.enter_context(Calls(targets, options))
        session.start(stop.is_asked)
        folding = _Folding(session, values, stem)
        session.notes.append("calls: from the agent's hook")
        attached(session)
        folding.run(stop)
        return folding.end()


class _Folding:
    """What a session tells, folded, and rendered when it is time."""

    def __init__(self, session: Calls, values: dict[str, Any], stem: str) -> None:
        self._session = session
        self._values = values
        self._stem = stem
        self._fold = CallFold(session.threads())
        self._began = time.monotonic()
        self._since_ns = time.time_ns()
        self._before = (0, 0)
        self._command = _command(session.targets)
        self._ticker = Ticker("folding calls", quiet=0.3)
        if values["silent"] or session.targets.command is not None:
            self._ticker.mute()

    def run(self, stop: Stop) -> None:
        """Until a limit, or the targets' end, or until it is stopped."""
        interval, most = self._values["interval"], self._values["count"]
        due = self._began + interval if interval else None
        while not (stop.is_asked() or self._session.is_over or self._is_late()):
            for told in self._session.events(REFRESH_SECONDS):
                self._fold.add(told)
            if most and self._fold.calls >= most:
                break
            now = time.monotonic()
            if due is not None and now >= due:
                self._render()
                due += interval
            calls = amount(self._fold.calls, "calls")
            self._ticker.say(f"folding calls: {calls}", now - self._began)
        for told in self._session.finish():
            self._fold.add(told)
        self._ticker.end()
        self._render()

    def _is_late(self) -> bool:
        limit = self._values["duration"]
        return limit is not None and time.monotonic() - self._began >= limit

    def _render(self) -> None:
        self._ticker.clear()
        now, unit = time.time_ns(), self._unit
        own = Statistics(
            unit, started_ns=self._since_ns, ended_ns=now, counted="calls",
            samples=self._fold.calls - self._before[0],
            failed=self._lost - self._before[1],
        )  # fmt: skip
        self._since_ns, self._before = now, (self._fold.calls, self._lost)
        pids = self._session.targets.pids
        meta = Meta(own.started_ns, unit, 0.0, "calls", "agent", pids, self._command)
        profile = Profile(self._fold.take(own), meta)
        r.render(profile, self._values["format_"], self._values, self._stem)

    @property
    def _lost(self) -> int:
        """Those at the very end no record tells of."""
        return max(self._fold.lost, _counters(self._session).get("lost", 0))

    @property
    def _unit(self) -> str:
        return "ns" if self._values["weight"] == "time" else "calls"

    def end(self) -> int:
        """Say how well it went; the exit code."""
        fold = self._fold
        counters = {
            "not_returned": fold.unreturned,
            "other_paths": fold.other,
            **_counters(self._session),
        }
        if not self._values["silent"]:
            click.echo(f"rbtrace-py: {amount(fold.calls, 'calls')}", err=True)
            for line in counter_lines(counters, Style.for_stream(sys.stderr)):
                click.echo(f"rbtrace-py: {line.strip()}", err=True)
        missing = lost(counters)
        too_much = 100 * missing > self._values["max_loss"] * (fold.calls + missing)
        return TOO_MUCH_LOST if missing and too_much else 0


def _counters(session: Calls) -> dict[str, int]:
    found: dict[str, int] = {}
    for end in session.ends():
        for name, number in end.counters.items():
            found[name] = found.get(name, 0) + number
    return found


def _command(targets: Targets) -> str:
    """The command line of the first target."""
    for process in targets.processes.values():
        return " ".join(process.cmdline)
    return ""
