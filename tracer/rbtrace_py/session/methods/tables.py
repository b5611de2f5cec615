"""Tables of the agent's hook: methods, allocations, exceptions, collections.

The hook keeps tables in memory that we map (mode table), so nothing is shipped for
an event, and nothing is lost at any rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.agent.arming import DIGITS, Armed, HookMismatch, Selector, What
from rbtrace_py.agent.client import AnotherProgram
from rbtrace_py.agent.place import ENDED_BEFORE, HOW_TO_LOAD, NoAgent, connect
from rbtrace_py.agent.protocol import Map
from rbtrace_py.agent.shared import Condition, Counters, HookMode
from rbtrace_py.agent.starting import HOLD_SECONDS, begun_before
from rbtrace_py.agent.tables import Counted, Tables
from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.methods import METHODS, MethodResult, MethodRow, group_rows
from rbtrace_py.errors import NoSuchTarget, RbtraceError, UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.readable import readable
from rbtrace_py.model.calls import UNKNOWN_METHOD, CalledMethod, MethodKind
from rbtrace_py.session.counting import CountingSession
from rbtrace_py.session.methods.hook_notes import c_calls_hint, hook_notes
from rbtrace_py.session.methods.hook_offsets import hook_offsets
from rbtrace_py.session.targets.confirmation import (
    Confirm,
    Confirmation,
    accept_none,
    what_stays,
)
from rbtrace_py.session.targets.joining import Joining
from rbtrace_py.session.targets.notes import Notes
from rbtrace_py.session.targets.targets import Targets

KINDS: Mapping[str, tuple[MethodKind, ...]] = {
    "method": METHODS,
    "gc": (MethodKind.GC,),
    "raise": (MethodKind.RAISE,),
    "object": (MethodKind.OBJECT,),
}
"""Words for what the hook sees, and what it calls that."""

BY = ("method", "class", "pid")
_RETRY_SECONDS = 0.02
_CONDITIONS = {
    "no_inner": Condition.NO_INNER,
    "silent": Condition.SILENT,
    "left_out": Condition.LEFT_OUT,
    "other_ractors": Condition.OTHER_RACTORS,
}
_TOLD_OTHERWISE = NoSuchTarget, HookMismatch
"""Ends that are expected, or an error by themselves."""


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """Questions to the hooks.

    by: ``method``, ``class`` or ``pid``; None: one group a word
    select: of which methods; none: of every one
    c_calls: methods written in C too; the process stays slower afterwards
    digits: significant ones of durations, 2 or 3
    wait: for an agent that is not there yet, and wait_seconds: for how long
    confirm: asked before something irreversible is done, with what it is
    """

    by: str | None = None
    select: Sequence[Selector] = ()
    c_calls: bool = False
    digits: int = DIGITS
    wait: bool = False
    wait_seconds: float | None = None
    confirm: Confirm = accept_none


class Methods(CountingSession):
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
        self.targets = targets
        self.command = command
        self.words = tuple(dict.fromkeys(words))
        self.options = options or MethodOptions()
        self.notes = Notes()
        self.on_wait: Callable[[float], None] | None = None
        self.started_ns = 0
        self._ended_ns: int | None = None
        self._confirmation = Confirmation(self.options.confirm)
        self._has_rows = False
        self._hooks: list[_Hook] = []
        self._natives: set[bool | None] = set()
        self._last_end = 0.0
        self._joining = Joining(targets, self._arm)
        self._untracked: set[int] = set()
        self._check()
        targets.start_with_agent(HOLD_SECONDS)

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
        """Arm all; waits for agents if that was asked for."""
        began = time.monotonic()
        while not self._has_armed(time.monotonic() - began):
            if self.on_wait is not None:
                self.on_wait(time.monotonic() - began)
            time.sleep(_RETRY_SECONDS)
            self.targets.refresh()
        self.started_ns = time.time_ns()
        self._untracked = self.targets.untracked_children()
        self._note()

    def _has_armed(self, waited: float) -> bool:
        processes = self.targets.alive()
        if not processes:
            raise NoSuchTarget(ENDED_BEFORE, HOW_TO_LOAD)
        children = [one for one in processes if self.targets.has_joined(one)]
        armed = {hook.pid for hook in self._hooks}
        without: dict[Process, RbtraceError] = {}
        for process in processes:
            if process.pid in armed or process in children:
                continue
            try:
                self._arm(process)
            except NoAgent as error:
                if self._waits(waited):
                    return False
                if not self.targets.follow:
                    raise
                # Its children may have agents, as workers whose parent loads little.
                without[process] = error
            except NoSuchTarget:
                if self.targets.command is None:
                    raise
                # It ended just now; what else there is to say is said next time.
                return False
        self._joining.begin([*without, *children])
        self.notes += self._joining.notes()
        if without and not self._hooks:
            raise next(iter(without.values()))
        return True

    def _arm(self, process: Process) -> None:
        # Of a program that is to become Ruby nothing is known before.
        connect(process).close()
        offsets = hook_offsets(process) if "method" in self.words else None
        what = self._what(offsets)
        has_executed = any(hook.process is process for hook in self._hooks)
        hook = _Hook(process, what, self._before_all)
        self._hooks.append(hook)
        self._natives.add(hook.native)
        if (self.targets.is_ours(process) or has_executed) and not hook.held:
            self.notes.append(begun_before(process.pid))

    def _waits(self, waited: float) -> bool:
        limit = self.options.wait_seconds
        wants = self.options.wait or self.targets.command is not None
        return wants and (limit is None or waited < limit)

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

    def _note(self) -> None:
        """Name the source, and what a user should know before the answer."""
        self.notes.append(f"{', '.join(self.words)}: counted by the agent's hook")
        for hook in self._hooks:
            self.notes += hook.notes
            self.notes += [f"process {hook.pid}: {text}" for text in hook.overhead]

    # ------------------------------------------------------------- as it goes on

    def refresh(self) -> None:
        """Hear what agents say; take in children, and what processes execute."""
        for hook in self._hooks:
            is_live = hook.is_live
            hook.refresh()
            if is_live and not hook.is_live:
                self._last_end = self._joining.clock()
                if hook.has_executed and self.targets.follows(hook.process):
                    hook.has_hung_up = False
                    self._joining.ask_again(hook.process)
        self._joining.refresh()

    @property
    def is_over(self) -> bool:
        """Have all targets ended, or their agents?"""
        is_live = any(hook.is_live for hook in self._hooks)
        if is_live or self._joining.may_join(self._last_end):
            return False
        return self.targets.ours_has_ended

    def wait(self, seconds: float) -> None:
        """Until an agent has something to say, which is heard at once, or so long."""
        live = [hook for hook in self._hooks if hook.is_live]
        if live:
            if readable(live, seconds):
                self.refresh()
        else:
            time.sleep(min(seconds, _RETRY_SECONDS))

    def finish(self) -> None:
        """Have the hooks taken out; the answer can still be read.

        Raises HookMismatch where one had disarmed itself.
        """
        if self._ended_ns is None:
            for hook in self._hooks:
                hook.disarm()
            self._ended_ns = time.time_ns()
            self._untracked |= self.targets.untracked_children()
            for hook in self._hooks:
                hook.check()

    def close(self) -> None:
        for hook in self._hooks:
            hook.close()
        self._hooks.clear()

    # ----------------------------------------------------------------- answer

    def snapshot(self) -> MethodResult:
        is_timed = self.command == "latency"
        rows = [row for hook in self._hooks for row in hook.rows(is_timed)]
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
        found = [hook.counters() for hook in self._hooks]
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
        counters["targeted"] = sum(hook.is_targeted for hook in self._hooks)
        counters["hung_up"] = sum(hook.has_hung_up for hook in self._hooks)
        counters["without_agent"] = self._joining.without
        counters["late_processes"] = self._joining.late
        if not counted and self._untracked:
            counters["not_followed"] = len(self._untracked)
        return counters


class _Hook:
    """One process's; ``has_hung_up``: its agent does, and the process goes on."""

    def __init__(
        self, process: Process, what: What, before_all: Callable[[Map, str], None]
    ) -> None:
        self.process = process
        self.pid = process.pid
        self._armed = Armed(process, what, before_all=before_all)
        self.notes = hook_notes(process.pid, self._armed, what.c_calls)
        self.native = self._armed.native
        self.is_targeted = self._armed.targets is not None
        self._tables = Tables(self._armed.shared, self._armed.scale)
        self._rows: dict[int, tuple[Counted, MethodRow]] = {}
        self._is_selection = bool(what.select)
        self.held = self._armed.held
        self.has_hung_up = False
        self.overhead = self._armed.overhead

    @property
    def is_live(self) -> bool:
        """Can it still say something?"""
        return self._armed.ended is None

    @property
    def has_executed(self) -> bool:
        """Does its process run another program now, in which the hook is not?"""
        return isinstance(self._armed.ended, AnotherProgram)

    def fileno(self) -> int:
        return self._armed.fileno()

    def listen(self) -> None:
        """Hear what it has said, of the end of its process too."""
        while self.is_live and readable([self], 0):
            self._armed.listen()

    def refresh(self) -> None:
        """Hear it, and learn names now and then: who is killed takes them along."""
        if not self.is_live:
            return
        self.listen()
        self._armed.keep_learning()
        why = self._armed.ended
        self.has_hung_up = not (why is None or isinstance(why, _TOLD_OTHERWISE))

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
            Histogram(counted.buckets, self._armed.shared.header.digits or DIGITS),
        )

    def _method(self, counted: Counted) -> CalledMethod:
        found = self._armed.method(counted.index)
        if found is UNKNOWN_METHOD:
            # Seen so late, or so near its process's end, that nobody could say.
            return CalledMethod(MethodKind(counted.kind), None, False, None)
        return found

    def counters(self) -> Counters:
        return self._armed.counters()

    def disarm(self) -> None:
        self._armed.begin_end()
        with suppress(RbtraceError):
            self.listen()
            self._armed.learn()
        self._armed.disarm()

    def check(self) -> None:
        """Raise HookMismatch if it disarmed itself."""
        if isinstance(self._armed.ended, HookMismatch):
            raise self._armed.ended

    def close(self) -> None:
        self._armed.close()
