"""Tables of the agent's hook: methods, allocations, exceptions, collections.

The hook keeps tables in memory that we map (mode table), so nothing is shipped for
an event, and nothing is lost at any rate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.agent.arming import DIGITS, Armed, HookMismatch, Selector, What
from rbtrace_py.agent.place import connect
from rbtrace_py.agent.protocol import Map
from rbtrace_py.agent.shared import Condition, HookMode
from rbtrace_py.agent.tables import Counted, Tables
from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.methods import METHODS, MethodResult, MethodRow, group_rows
from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.readable import readable
from rbtrace_py.model.calls import UNKNOWN_METHOD, CalledMethod, MethodKind
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.methods.agent_session import AgentOptions, AgentSession
from rbtrace_py.session.methods.hook_notes import c_calls_hint, hook_notes
from rbtrace_py.session.methods.hook_offsets import hook_offsets
from rbtrace_py.session.targets.confirmation import (
    Confirm,
    Confirmation,
    accept_none,
    what_stays,
)
from rbtrace_py.session.targets.targets import Targets

KINDS: Mapping[str, tuple[MethodKind, ...]] = {
    "method": METHODS,
    "gc": (MethodKind.GC,),
    "raise": (MethodKind.RAISE,),
    "object": (MethodKind.OBJECT,),
}
"""Words for what the hook sees, and what it calls that."""

BY = ("method", "class", "pid")
_IDLE_SECONDS = 0.02
_CONDITIONS = {
    "no_inner": Condition.NO_INNER,
    "silent": Condition.SILENT,
    "left_out": Condition.LEFT_OUT,
    "other_ractors": Condition.OTHER_RACTORS,
}


@dataclass(frozen=True, slots=True)
class MethodOptions(AgentOptions):
    """Questions to the hooks.

    by: ``method``, ``class`` or ``pid``; None: one group a word
    select: of which methods; none: of every one
    c_calls: methods written in C too; the process stays slower afterwards
    digits: significant ones of durations, 2 or 3
    confirm: asked before something irreversible is done, with what it is
    """

    by: str | None = None
    select: Sequence[Selector] = ()
    c_calls: bool = False
    digits: int = DIGITS
    confirm: Confirm = accept_none


class Methods(AgentSession["_HookedProcess"], CountingSession):
    """A question about what Ruby calls, asked of the agents in a set of processes.

    command: ``latency`` or ``count``; words: of KINDS
    Entering arms the hooks, leaving disarms them; ``snapshot`` is the answer so far,
    also after the processes have ended. Raises NoAgent, NoSuchTarget, NotPermitted,
    AgentError, Unsupported, NotConfirmed, BrokenAgent, UsageError.
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
        self._confirmation = Confirmation(self.options.confirm)
        self._has_rows = False
        self._hooked: list[_HookedProcess] = []
        self._natives: set[bool | None] = set()

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

    # ------------------------------------------------------------- life cycle

    def _start(self) -> None:
        self.start()
        self.started_ns = time.time_ns()
        self.notes.append(f"{', '.join(self.words)}: counted by the agent's hook")
        for each in self._hooked:
            pid, armed = each.pid, each.armed
            self.notes += hook_notes(pid, armed, each.c_calls)
            self.notes += [f"process {pid}: {text}" for text in armed.overhead]

    def _join(self, process: Process) -> None:
        # A program that is about to execute Ruby has no offsets yet.
        connect(process).close()
        offsets = hook_offsets(process) if "method" in self.words else None
        what = self._what(offsets)
        armed = Armed(process, what, before_all=self._before_all)
        hooked = _HookedProcess(process.pid, armed, what)
        self._hooked.append(hooked)
        self._natives.add(armed.native)
        self._add(process, hooked, armed.held)

    def _before_all(self, hello: Map, why_all: str = "") -> None:
        """Ask before what is irreversible; raises NotConfirmed."""
        if "method" in self.words:
            # A program that we start is held before it defines its methods.
            why_all = "" if self.targets.command else why_all
            texts = what_stays(hello, self.options.c_calls, why_all)
            self._confirmation.ask(texts)

    def _what(self, offsets: dict[str, int] | None) -> What:
        return What(
            HookMode.TABLE,
            methods="method" in self.words,
            c_calls="method" in self.words and self.options.c_calls,
            gc="gc" in self.words,
            exceptions="raise" in self.words,
            objects="object" in self.words,
            select=self.options.select,
            histograms=self.command == "latency",
            digits=self.options.digits,
            offsets=offsets,
        )

    # ------------------------------------------------------------- as it goes on

    def refresh(self) -> None:
        """Receive what agents report; trace new children and executed programs."""
        for process, hooked in list(self._live.items()):
            hooked.listen()
            hooked.armed.keep_learning()
            if hooked.armed.ended is not None:
                self._release(process, hooked.armed.ended)
        super().refresh()

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until an agent reports something."""
        live = [hooked.armed for hooked in self._live.values()]
        if live:
            if readable(live, seconds):
                self.refresh()
        else:
            time.sleep(min(seconds, _IDLE_SECONDS))

    def finish(self) -> None:
        """Disarm the hooks; the answer can still be read.

        Raises:
            HookMismatch: A hook had disarmed itself.
        """
        if self._ended_ns is None:
            for hooked in self._live.values():
                hooked.disarm()
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

    # ----------------------------------------------------------------- answer

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
        """Return what a user may have overlooked who has got nothing; or empty."""
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

    def __init__(self, pid: int, armed: Armed, what: What) -> None:
        self.pid = pid
        self.armed = armed
        self.c_calls = what.c_calls
        self._tables = Tables(armed.shared, armed.scale)
        self._rows: dict[int, tuple[Counted, MethodRow]] = {}
        self._is_selection = bool(what.select)

    def listen(self) -> None:
        """Receive all that the agent has sent, and notice the end of its process."""
        while self.armed.ended is None and readable([self.armed], 0):
            self.armed.listen()

    def rows(self, is_timed: bool) -> list[MethodRow]:
        """Return the rows as they are now."""
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
        lacks_own = self._is_selection and method.kind in METHODS
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
            # Seen so late, or so near its process's end, that nobody could say.
            return CalledMethod(MethodKind(counted.kind), None, False, None)
        return found

    def disarm(self) -> None:
        self.armed.begin_end()
        with suppress(RbtraceError):
            self.listen()
            self.armed.learn()
        self.armed.disarm()
