"""The base of probe sessions: select, attach, follow processes, and count losses."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack

from rbtrace_py.bpf.attach import Attacher, choose_attacher
from rbtrace_py.bpf.compiler import check_bcc
from rbtrace_py.bpf.features import check_rights
from rbtrace_py.bpf.probe_engine import AttachRequest, Engine
from rbtrace_py.bpf.slots import DURATION_NAME
from rbtrace_py.bpf.tracked_pids import TrackedPids
from rbtrace_py.errors import (
    BpfError,
    NoSuchProbe,
    NoSuchTarget,
    NotPermitted,
    RbtraceError,
)
from rbtrace_py.linux.closing import Starting
from rbtrace_py.linux.probes import find_probes, scan_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.probes import method_probe_arming, select
from rbtrace_py.session.probes.cost import CostMeter
from rbtrace_py.session.probes.filters import check_syntax, time_notes
from rbtrace_py.session.probes.query import NoOperand, ProbeOptions, ProbeQuery, unique
from rbtrace_py.session.probes.watcher import Watcher
from rbtrace_py.session.targets import hazards
from rbtrace_py.session.targets.confirmation import require
from rbtrace_py.session.targets.notes import Notes, skipped
from rbtrace_py.session.targets.targets import Targets

_UNSEEN = (
    "Check that the program loads the gem and defines them;"
    " `rbtrace-py probes PID` lists them"
)


class ProbeSession(Starting, ProbeQuery):
    """A query for probes in a set of processes.

    Entering the context manager attaches, and leaving it detaches. ``refresh`` updates
    a growing set, about every ``limits.REFRESH_SECONDS``.

    Attributes:
        cost: Cost of the hits after ``finish``; None: not measured.
        on_wait: Called many times per second while entering waits for a probe, with
            the seconds so far.

    Raises:
        NoSuchProbe, NoSuchTarget, NotPermitted, BpfError, UsageError
    """

    command = ""
    measures_cost = True
    limits_cost = False
    """True if the session detaches when the hits take too much CPU."""

    def __init__(
        self,
        targets: Targets,
        words: Sequence[str],
        options: ProbeOptions | None = None,
    ) -> None:
        super().__init__(words, options)
        self.targets = targets
        self.series: dict[str, int] = {}
        self.late_probes = 0
        self.not_traced = 0
        self.started_ns = 0
        self.cost: HitCost | None = None
        self.notes = Notes()
        self.on_wait: Callable[[float], None] | None = None
        self._watcher = Watcher()
        self._made = time.monotonic()
        self._unfit: set[str] = set()
        self._untracked: set[int] = set()
        self._durations = {DURATION_NAME}
        self._has_executed = False
        self._tracked: TrackedPids | None = None
        self._engines: list[Engine] = []
        self._meter: CostMeter | None = None
        self._confirmed: set[hazards.Hazard | None] = {None}
        self._ended_ns: int | None = None
        self._arming: method_probe_arming.MethodProbeArming | None = None

    # ------------------------------------------------------------- life cycle

    def _start(self) -> None:
        try:
            attacher = choose_attacher()
        except NotPermitted:
            self._check_words()
            raise
        if self._is_ours:
            self.check_before()
            self.targets.start_held()
        probes = self._scan_until_there()
        if not self.targets.is_single:
            self._tracked = TrackedPids(self.targets.processes, self.targets.follow)
        found = [o for p in unique(probes) for o in p.operands if o.is_duration]
        self._durations.update(operand.name for operand in found)
        self._ask(unique(probes))
        probes = self._allowed(probes)
        self.plan(unique(probes))
        if self.measures_cost:
            self._meter = CostMeter(attacher)
        self.make_engines(attacher)
        self._have_methods_speak(probes)
        attached = self._attach_first(probes)
        if self._is_ours and not self.targets.is_at_beginning():
            # The program ran before its probes were attached.
            self.late_probes += attached
        self._check_attached(probes)
        self.started_ns = time.time_ns()
        self.targets.release()
        if self._meter is not None:
            self._meter.begin()
        self._untracked = self.targets.untracked_children()
        self._note(attacher)

    def _check_words(self) -> None:
        """Raise NoSuchProbe for an unknown word, because root would get it, too."""
        if self._is_ours or self.options.wait:
            return
        try:
            self._scan_until_there()
        except NoSuchProbe:
            cache, processes = self.targets.probes, self.targets.alive()
            if not any(scan_probes(each, cache).problems for each in processes):
                raise
        except NotPermitted:
            return  # the missing rights to use BPF are reported first

    def _have_methods_speak(self, probes: Mapping[int, Sequence[Probe]]) -> None:
        """Enable method probes that were named; a glob does not justify the cost."""
        if any(map(method_probe_arming.is_silent, self.named(unique(probes)))):
            self._arming = method_probe_arming.MethodProbeArming(
                self.targets.alive(), self.options.confirm
            )
            self.notes += dict.fromkeys(self._arming.notes)

    def _attach_first(self, probes: Mapping[int, Sequence[Probe]]) -> int:
        """Attach to the first targets; some may end or execute another program."""
        count = 0
        problem = None
        for pid, found in probes.items():
            try:
                count += self._attach({pid: found})
            except NoSuchTarget as error:
                problem = error
        if problem is None or count:
            return count
        if self.targets.alive():
            if self.may_grow:
                return 0  # others may come
            raise problem
        raise NoSuchTarget("the target exited before tracing started") from problem

    def _note(self, attacher: Attacher) -> None:
        """Add notes that the user should read before the result."""
        if self.options.filter is not None:
            self.notes += time_notes(self.options.filter)
        if attacher.slow_to_detach:
            self.notes.append(
                "without uprobe_multi (Linux 6.10) detaching takes about 0.1 s per site"
            )
        is_immediate = self._tracked is not None and self._tracked.is_immediate
        if self.targets.follow and not is_immediate:
            self.notes.append(
                "without BTF, child processes are found up to 100 ms late"
            )
        if self.lacking:
            names = {name for lack in self.lacking.values() for name in lack}
            what = f"no argument {' or '.join(sorted(names))} and"
            number = len(self.lacking)
            self.notes.append(
                f"1 probe has {what} is not traced"
                if number == 1
                else f"{number} probes have {what} are not traced"
            )

    def _check_attached(self, probes: Mapping[int, Sequence[Probe]]) -> None:
        """Raise BpfError if a named probe is not attached; count other failures."""
        named = set(self.named(unique(probes)))
        for engine in self._engines:
            for probe, reason in engine.refused.items():
                if probe in named or not engine.requests:
                    raise BpfError(f"{probe.full_name}: {reason}")
                self.not_traced += 1

    def _ask(self, probes: Sequence[Probe]) -> None:
        """Request confirmation for each probe that can harm the target."""
        for hazard in hazards.hazards(self.named(probes), self.limits_cost):
            require(self.options.confirm, hazard.text, hazard.hint)
            self._confirmed.add(hazard)

    def _allowed(self, probes: Mapping[int, Sequence[Probe]]) -> dict[int, list[Probe]]:
        """Remove probes that can harm the target, unless the user confirmed them."""
        return {
            pid: [
                probe
                for probe in found
                if hazards.hazard(probe, self.limits_cost) in self._confirmed
            ]
            for pid, found in probes.items()
        }

    def _scan_until_there(self) -> dict[int, list[Probe]]:
        """Scan the targets; with ``wait``, repeat until every word matches."""
        while True:
            probes = self._scan(self.targets.alive())
            if not probes and not self.targets.processes:
                raise NoSuchTarget(
                    "the target exited before its probes appeared", _UNSEEN
                )
            try:
                self.check(unique(probes))
                return probes
            except NoSuchProbe:
                if not (self.options.wait or self._is_ours) or self._is_too_late():
                    raise
            if self.on_wait is not None:
                self.on_wait(time.monotonic() - self._made)
            self.targets.wait(0.02)
            self.targets.refresh()

    def _is_too_late(self) -> bool:
        limit = self.options.wait_seconds
        return limit is not None and time.monotonic() - self._made > limit

    def _scan(self, processes: Iterable[Process]) -> dict[int, list[Probe]]:
        found = {}
        for process in processes:
            try:
                found[process.pid] = self._probes_of(process)
            except NoSuchTarget:
                if self.targets.is_single and not self._engines and not self._is_ours:
                    raise
                continue
            except RbtraceError as error:
                if not self.targets.has_joined(process):
                    raise
                self.notes.add(skipped(process.pid, error))
                continue
            self._watcher.has_executed(process)
        return found

    def _probes_of(self, process: Process) -> list[Probe]:
        """Read a process's probes; the next ``refresh`` finds later ones."""
        found = self.find(process)
        if not (self.may_grow or self._has_executed):
            return found
        # Learn first: the learned state must be older than the probes that are read.
        # The first read lists the files to hold open.
        self._watcher.learn(process, found)
        return self.find(process)

    def find(self, process: Process) -> list[Probe]:
        """Return the probes of a process that words can match."""
        return find_probes(process, self.targets.probes)

    @property
    def _is_ours(self) -> bool:
        """True if we started the target, which may end before it has probes."""
        return self.targets.command is not None

    def _attach(self, probes: Mapping[int, Sequence[Probe]]) -> int:
        """Attach to the probes of each process; return the number of new probes."""
        count = 0
        for number, engine in enumerate(self._engines):
            for pid, found in probes.items():
                process = self.targets.processes.get(pid)
                if process is not None:
                    count += engine.attach(process, self.requests(number, found))
        return count

    @property
    def probes(self) -> list[Probe]:
        """The attached probes."""
        found = [w.probe for engine in self._engines for w in engine.requests]
        return list(dict.fromkeys(found))

    @property
    def may_grow(self) -> bool:
        """True if further probes or processes can belong to the result."""
        return (
            not self.targets.is_single
            or self.targets.command is not None
            or self.options.wait
            or any(map(select.is_glob, self.words))
        )

    def refresh(self) -> None:
        """Attach to new probes and processes, and release ended processes.

        Targets can no longer end the session with an error: unsuitable probes are
        skipped and counted (``not_traced``).
        """
        alive = self.targets.alive()
        for pid in self.targets.take_ended():
            self._forget(pid)
        self._has_executed |= any(map(self._watcher.has_executed, alive))
        if not (self.may_grow or self._has_executed):
            return
        known = self._tracked.pids() if self._tracked is not None else []
        fresh = self.targets.refresh(known)
        changed = [p for p in (*alive, *fresh) if self._watcher.has_changed(p)]
        probes = self._allowed(self._scan(changed))
        if probes:
            self.late_probes += self._attach_late(self._fitting(probes))

    def _forget(self, pid: int) -> None:
        self._watcher.forget(pid)
        if self._tracked is not None:
            self._tracked.discard(pid)
        for engine in self._engines:
            engine.forget(pid)

    def _fitting(self, probes: Mapping[int, Sequence[Probe]]) -> dict[int, list[Probe]]:
        """Return the probes that can be planned, each by itself."""
        unfit = set()
        for probe in unique(probes):
            try:
                self.plan([probe])
            except NoOperand:
                self.lacking[probe.full_name] = self.missing_operands(probe)
            except RbtraceError:
                unfit.add(probe.full_name)
        self.not_traced += len(unfit - self._unfit)
        self._unfit |= unfit
        return {
            pid: [probe for probe in found if probe.full_name not in unfit]
            for pid, found in probes.items()
        }

    def _attach_late(self, probes: Mapping[int, Sequence[Probe]]) -> int:
        count = 0
        for pid, found in probes.items():
            try:
                count += self._attach({pid: found})
            except NoSuchTarget:
                continue
            except RbtraceError:
                self.not_traced += 1
        return count

    @property
    def is_over(self) -> bool:
        """True if all targets have exited."""
        return not self.targets.alive()

    def finish(self) -> None:
        """Detach all probes; results can still be read."""
        is_first = self._ended_ns is None
        if is_first:
            if self._meter is not None:
                self._meter.stop(self._engines, self.counting_engines)
            for engine in self._engines:
                engine.silence()
            self._ended_ns = time.time_ns()
            self._untracked |= self.targets.untracked_children()
        for engine in self._engines:
            engine.detach()
        if is_first and self._meter is not None:
            self.cost = self._meter.cost()

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._watcher.close)
            if self._arming is not None:
                stack.callback(self._arming.close)
            if self._meter is not None:
                stack.callback(self._meter.close)
            if self._tracked is not None:
                stack.callback(self._tracked.close)
            for engine in self._engines:
                stack.callback(engine.close)
        self._engines = []
        self._tracked = None

    @property
    def ended_ns(self) -> int:
        """End of counting; the current time while counting continues."""
        return self._ended_ns or time.time_ns()

    # --------------------------------------------------------- for each session

    def check_before(self) -> None:
        """Check what can fail before we start the program.

        Raises:
            NotPermitted, BpfError, FilterError
        """
        check_rights()
        if self.options.filter is not None:
            check_syntax(self.options.filter)
            check_bcc()  # The filter's program is only known once there are probes.

    @abstractmethod
    def plan(self, probes: Sequence[Probe]) -> None:
        """Plan for probes: name their series, and check operands and the filter.

        It is called again for each later probe.

        Raises:
            RbtraceError: A probe is unsuitable.
        """

    @abstractmethod
    def make_engines(self, attacher: Attacher) -> None:
        """Add the programs for the planned probes to ``_engines``."""

    @abstractmethod
    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        """Return requests for a process's probes in engine number ``engine``."""

    # ------------------------------------------------------------------- shared

    def durations_flag(self, names: Sequence[str]) -> int:
        """Return DURATIONS of a program, for the names of the operands in its slots."""
        return sum(1 << i for i, name in enumerate(names) if name in self._durations)

    def series_number(self, name: str) -> int:
        return self.series.setdefault(name, len(self.series))

    @property
    def counting_engines(self) -> Sequence[Engine]:
        """The engines whose counters count hits; each event is in one engine."""
        return self._engines

    def counters(self, *which: Counter) -> dict[str, int]:
        """Return the engines' counters by their names in a result, and common ones."""
        names = [*which, Counter.UNREADABLE, Counter.NO_ROOM]
        found = {}
        for counter in names:
            total = sum(engine.counters()[counter] for engine in self.counting_engines)
            found[counter.name.lower()] = total
        if self.filter.compiled is not None:
            found["filtered"] = sum(
                engine.counters()[Counter.FILTERED] for engine in self.counting_engines
            )
        found["kernel_missed"] = sum(
            engine.missed() for engine in self.counting_engines
        )
        if self._tracked is not None:
            found["no_room"] += self._tracked.no_room
        found["late_probes"] = self.late_probes
        found["not_traced"] = self.not_traced
        found["no_operand"] = len(self.lacking)
        return found

    def children_hint(
        self, counted: int, counters: Mapping[str, int]
    ) -> dict[str, int]:
        """Return a counter for an empty result: children that are not followed."""
        if counted or counters.get("filtered") or not self._untracked:
            return {}
        return {"not_followed": len(self._untracked)}
