"""Tables of the agent's hook: methods, allocations, exceptions, collections.

The hook keeps its tables in memory that we map (mode ``table``). It sends nothing per
event, and so it loses nothing at any rate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rbtrace_py.agent.arming import DIGITS, Armed, ArmRequest, HookMismatch
from rbtrace_py.agent.shared import Condition, HookMode
from rbtrace_py.agent.tables import Counted, Tables
from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.methods import METHODS, MethodResult, MethodRow, group_rows
from rbtrace_py.errors import UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.model.calls import UNKNOWN_METHOD, CalledMethod, MethodKind
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.methods.hook_notes import c_calls_hint, hook_notes
from rbtrace_py.session.methods.hook_session import HookOptions, HookSession
from rbtrace_py.session.targets.targets import Targets

KINDS: Mapping[str, tuple[MethodKind, ...]] = {
    "method": METHODS,
    "gc": (MethodKind.GC,),
    "raise": (MethodKind.RAISE,),
    "object": (MethodKind.OBJECT,),
}
"""Words of the command line, and the hook's kinds for each."""

BY = ("method", "class", "pid")
_IDLE_SECONDS = 0.02
_CONDITIONS = {
    "no_inner": Condition.NO_INNER,
    "silent": Condition.SILENT,
    "left_out": Condition.LEFT_OUT,
    "other_ractors": Condition.OTHER_RACTORS,
}


@dataclass(frozen=True, slots=True)
class MethodOptions(HookOptions):
    """Options of ``latency`` and ``count``.

    Attributes:
        by: ``method``, ``class``, or ``pid``; None means one group per word.
        digits: Significant digits of durations, 2 or 3.
    """

    by: str | None = None
    digits: int = DIGITS


class Methods(HookSession["_HookedProcess"], CountingSession):
    """A session that counts and times calls, collections, exceptions, or objects.

    Entering arms the hooks, and leaving disarms them. ``snapshot`` is the current
    result, also after the processes have exited.

    Args:
        command: ``latency`` or ``count``.
        words: Keys of KINDS.

    Raises:
        UsageError: The words do not support the options.
        NoAgent, NoSuchTarget, NotPermitted, AgentError, Unsupported, NotConfirmed,
            BrokenAgent: Arming fails when the session is entered.
    """

    def __init__(
        self,
        targets: Targets,
        command: str,
        words: Sequence[str],
        options: MethodOptions | None = None,
    ) -> None:
        self.command = command
        self.words = tuple(dict.fromkeys(words))
        self.options = options or MethodOptions()
        self._check()
        super().__init__(targets, self.options)
        self.started_ns = 0
        self._ended_ns: int | None = None
        self._has_rows = False
        self._hooked: list[_HookedProcess] = []

    def _check(self) -> None:
        by = self.options.by
        if by is not None and by not in BY:
            raise UsageError(
                f"{', '.join(self.words)} cannot be grouped by {by}",
                f"Group by {', '.join(BY[:-1])} or {BY[-1]}",
            )
        if self.options.digits not in (2, 3):
            raise UsageError(f"durations have 2 or 3 digits, not {self.options.digits}")
        if self.command == "latency":
            timeless = [word for word in self.words if word in ("raise", "object")]
            if timeless:
                raise UsageError(
                    f"{timeless[0]} has no duration",
                    f"Use `rbtrace-py count PID {timeless[0]}`",
                )

    def _start(self) -> None:
        self.start()
        self.started_ns = time.time_ns()
        self.notes.append(f"{', '.join(self.words)}: counted by the agent's hook")
        c_calls = "method" in self.words and self.options.c_calls
        for each in self._hooked:
            pid, armed = each.pid, each.armed
            self.notes += hook_notes(pid, armed, c_calls)
            self.notes += [f"process {pid}: {text}" for text in armed.overhead]

    def _join(self, process: Process) -> None:
        armed = self._arm_hook(process)
        hooked = _HookedProcess(process.pid, armed)
        self._hooked.append(hooked)
        self._add(process, hooked, armed.held)

    def _request(self, process: Process) -> ArmRequest:
        return ArmRequest(
            HookMode.TABLE,
            methods="method" in self.words,
            c_calls="method" in self.words and self.options.c_calls,
            gc="gc" in self.words,
            exceptions="raise" in self.words,
            objects="object" in self.words,
            select=self.options.select,
            histograms=self.command == "latency",
            digits=self.options.digits,
        )

    def refresh(self) -> None:
        """Receive what agents report; trace new children and executed programs."""
        self._listen(0)
        for process, hooked in list(self._live.items()):
            hooked.armed.keep_learning()
            if hooked.armed.ended is not None:
                self._release(process, hooked.armed.ended)
        super().refresh()

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until an agent reports something."""
        if self._listen(seconds if self._live else min(seconds, _IDLE_SECONDS)):
            self.refresh()

    def finish(self) -> None:
        """Disarm the hooks; the result can still be read.

        Raises:
            HookMismatch: A hook had disarmed itself.
        """
        if self._ended_ns is None:
            self._listen(0)
            for hooked in self._live.values():
                hooked.armed.begin_end()
                hooked.armed.learn()
                hooked.armed.disarm()
            self._ended_ns = time.time_ns()
            self._note_untraced()
            for hooked in self._hooked:
                if isinstance(hooked.armed.ended, HookMismatch):
                    raise hooked.armed.ended

    def close(self) -> None:
        for hooked in self._hooked:
            hooked.armed.close()
        self._hooked.clear()
        self._live.clear()

    def snapshot(self) -> MethodResult:
        is_timed = self.command == "latency"
        rows = [row for each in self._hooked for row in each.rows(is_timed)]
        series = {kind: word for word in self.words for kind in KINDS[word]}
        self._has_rows = bool(rows)
        groups = group_rows(rows, series, self.options.by, is_timed)
        counters = self._counters(rows, sum(group.count for group in groups))
        return MethodResult(
            self.command,
            self.targets.pids,
            self.words,
            self.started_ns,
            self._ended_ns or time.time_ns(),
            tuple(groups),
            counters,
            self.options.by,
            "ns" if is_timed else "",
        )

    @property
    def hint(self) -> str:
        """Hint for a user without results, or an empty string."""
        if self._has_rows or not self.options.select or self.options.c_calls:
            return ""
        return f"no matching call was seen{c_calls_hint(self._natives)}"

    def _counters(self, rows: Sequence[MethodRow], counted: int) -> dict[str, int]:
        found = [each.armed.counters() for each in self._hooked]
        names = ["no_method", "too_deep", "no_stream"]
        counters = {}
        if self.command == "latency":
            names += ["abandoned", "no_block"]
            counters["running"] = sum(row.entries - row.calls for row in rows)
            counters["running_at_attach"] = sum(each.orphans for each in found)
        for name in names:
            counters[name] = sum(getattr(each, name) for each in found)
        if self.command == "latency":
            counters["running"] -= counters["abandoned"]
        for name, bit in _CONDITIONS.items():
            counters[name] = sum(bit in each.conditions for each in found)
        are_targeted = (each.armed.targets is not None for each in self._hooked)
        counters["targeted"] = sum(are_targeted)
        counters["hung_up"] = self.hung_up
        return counters | self.unseen(counted)


class _HookedProcess:
    """A process with its hook, and the rows of the hook's tables."""

    def __init__(self, pid: int, armed: Armed) -> None:
        self.pid = pid
        self.armed = armed
        self._tables = Tables(armed.shared, armed.scale)
        self._rows: dict[int, tuple[Counted, MethodRow]] = {}

    def rows(self, is_timed: bool) -> list[MethodRow]:
        """Return the current rows."""
        return [self._row(each) for each in self._tables.read(is_timed)]

    def _row(self, counted: Counted) -> MethodRow:
        known = self._rows.get(counted.index)
        if known is not None and known[0] is counted:
            return known[1]
        method = self._method(counted)
        row = self._made(counted, method)
        if method.kind is not MethodKind.NO_ROOM and method.owner is not None:
            self._rows[counted.index] = counted, row
        return row

    def _made(self, counted: Counted, method: CalledMethod) -> MethodRow:
        lacks_own = self.armed.select and method.kind in METHODS
        return MethodRow(
            self.pid,
            method,
            counted.entries,
            counted.calls,
            counted.total,
            None if lacks_own else counted.own,
            counted.summed,
            counted.longest,
            Histogram(counted.buckets, self.armed.shared.header.digits or DIGITS),
        )

    def _method(self, counted: Counted) -> CalledMethod:
        found = self.armed.method(counted.index)
        if found is UNKNOWN_METHOD:
            # The process exited before the agent could send the method's name.
            return CalledMethod(MethodKind(counted.kind), None, False, None)
        return found
