"""``stacks --calls``: call trees with exact counts and times, from the agent's hook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rbtrace_py.agent.arming import HookMismatch
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.results import lost
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.cli.common import rendering as r
from rbtrace_py.cli.common.folding_options import FoldingOptions
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.session_start import attached, enter, where
from rbtrace_py.cli.common.stop import Stop
from rbtrace_py.cli.common.ticker import Ticker
from rbtrace_py.errors import loss_exit_code
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.notes import counter_lines
from rbtrace_py.report.terminal.weights import amount
from rbtrace_py.session.drive import drive
from rbtrace_py.session.methods.call_trees import FoldedCalls
from rbtrace_py.session.methods.calls import CallsOptions
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.methods.traced_process import BrokenRecords
from rbtrace_py.session.targets.targets import Targets


def fold_calls(
    targets: Targets, options: FoldingOptions, stem: Callable[[], str]
) -> int:
    """Fold calls until the session ends, and return the exit code.

    Args:
        targets: Target processes.
        options: Options of ``stacks --calls``.
        stem: Function that names the file without ``-o``, once a process is known.
    """
    settings = CallsOptions(
        select=selectors_of(options.selectors, ()),
        c_calls=options.c_calls,
        gc=True,
        confirm=options.confirm,
        wait_seconds=options.duration,
    )
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        session = FoldedCalls(targets, settings)
        session.stop = stop.is_asked
        enter(stack, session, f"an agent in {where(targets)}")
        folding = _Folding(session, options, stem())
        session.notes.append("calls: from the agent's hook")
        attached(session)
        said = len(session.notes)
        folding.run(stop)
        return folding.end(session.notes[said:])


class _Folding:
    """A session's calls, folded and rendered at intervals."""

    def __init__(
        self, session: FoldedCalls, options: FoldingOptions, stem: str
    ) -> None:
        self._session = session
        self._options = options
        self._stem = stem
        self._since_ns = time.time_ns()
        self._before = (0, 0)
        self._command, self._folder = _first(session.targets)
        self._ticker = Ticker("folding calls", quiet=0.3)
        if options.silent or session.targets.command is not None:
            self._ticker.mute()

    def run(self, stop: Stop) -> None:
        """Run until a limit, the end of the targets, or a stop."""
        limits = self._options.limits
        drive(self._session, limits, stop.is_asked, self._tick, self._render)
        self._ticker.end()
        if not limits.interval:
            self._render()

    def _tick(self, seconds: float) -> None:
        calls = amount(self._session.seen, "calls")
        self._ticker.say(f"folding calls: {calls}", seconds)

    def _render(self) -> None:
        self._ticker.clear()
        now, unit, session = time.time_ns(), self._unit, self._session
        own = Statistics(
            unit, started_ns=self._since_ns, ended_ns=now, counted="calls",
            samples=session.seen - self._before[0],
            failed=session.lost - self._before[1],
        )  # fmt: skip
        self._since_ns, self._before = now, (session.seen, session.lost)
        pids = session.targets.pids
        meta = Meta(
            own.started_ns, unit, 0.0, "calls", "agent", pids, self._command,
            folder=self._folder,
        )  # fmt: skip
        # Only callgrind's format contains both stacks and calls.
        calls = StackCounts() if self._options.format_ == "callgrind" else None
        profile = Profile(session.take(own, calls), meta, calls=calls)
        r.render(profile, self._options, self._stem)

    @property
    def _unit(self) -> str:
        return "calls" if self._options.weight == "calls" else "ns"

    def end(self, notes: Sequence[str]) -> int:
        """Print the losses and ``notes``, and return the exit code."""
        session = self._session
        counters = {
            "not_returned": session.unreturned,
            "other_paths": session.other,
            **session.counters(),
            **session.unseen(session.seen),
        }
        if not self._options.silent:
            self._say(counters)
            for note in notes:
                say_note(note)
        for ended in session.ends():
            if isinstance(ended.problem, (HookMismatch, BrokenRecords)):
                raise ended.problem
        return loss_exit_code(session.seen, lost(counters), self._options.max_loss)

    def _say(self, counters: dict[str, int]) -> None:
        """Print the number of calls and the losses, without repeating the report."""
        is_said = not self._options.interval and self._options.says_losses
        if is_said:
            counters = {**counters, "lost": 0}
        else:
            say_note(amount(self._session.seen, "calls"))
        style = Style.for_stream(sys.stderr)
        for line in counter_lines(counters, style, says_none=not is_said):
            say_note(line.strip())


def _first(targets: Targets) -> tuple[str, str]:
    """Return the command line and the working directory of the first target."""
    for process in targets.processes.values():
        return " ".join(process.cmdline), process.folder
    return "", ""
