"""Arming the agent's hook: its events, method names, clock, and end.

``Armed`` holds the connection. When the connection ends, for any reason, the agent
removes the hook. The memory stays readable until ``close``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rbtrace_py.agent.client import HELLO_SECONDS, Agent, AgentError
from rbtrace_py.agent.protocol import (
    BrokenAgent,
    MalformedAnswer,
    Map,
    bound_of_exit,
)
from rbtrace_py.agent.shared import (
    ClockPair,
    Counters,
    Header,
    HookMode,
    SharedMemory,
    TicksOf,
)
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.clocks import wall_offset
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process
from rbtrace_py.model.calls import (
    NO_ROOM_METHOD,
    UNKNOWN_METHOD,
    CalledMethod,
    MethodKind,
    TickScale,
)

ARM_SECONDS = 120
NAMES_AT_ONCE = 4096
DIGITS = 2
"""Significant digits of methods' durations."""
MAX_BLOCKS = 1 << 20
"""Default maximum number of histogram blocks."""
END_SECONDS = 10
"""Seconds for all requests at the end of a session."""
LEARN_SECONDS = 0.1
"""Seconds between two requests for names that are not needed yet."""
MAX_TEXT = 1024
"""Maximum characters of a name or path."""
MAX_NAMES = 16 << 20
"""Characters of all methods' names and paths; later ones are cut to SHORT_TEXT."""
SHORT_TEXT = 64
_MOST_NEAR = 1000
"""Maximum number of similar names, as in the agent."""
_NEAR_TEXT = 100
"""Maximum characters of a similar name, because comparing long names is slow."""
_MOST_LEFT_OUT = 1000
"""Maximum number of omitted methods' names, as many as an agent hooks one by one."""
_MOST_OVERHEAD = 16
_THREAD_NAME = 128
"""Maximum characters of a thread's name."""
_UNTESTED = "RBTRACE_UNTESTED_RUBY"
_MISMATCHES = {
    1: "the event",
    2: "self",
    3: "the control frame",
    4: "the method of a frame",
}
"""Mismatches by their number in the header (docs/agent/memory.md)."""
_TARGET_MODES = (HookMode.RING, HookMode.TABLE, HookMode.SLOW)
_SCALES = (0.01, 100_000)
"""Limits of a tick in nanoseconds: 100 GHz to 10 kHz."""


class Unsupported(RbtraceError):
    """The agent has no hook for this Ruby or machine."""


class HookMismatch(RbtraceError):
    """The hook disarmed itself, because a value that it read contradicts Ruby."""

    def __init__(self, pid: int, mismatch: int) -> None:
        what = _MISMATCHES.get(mismatch, "something")
        super().__init__(
            f"the agent's hook in process {pid} disarmed itself: it does not find"
            f" {what} where this Ruby has it",
            "Use `stacks`, `top` and `dump`, which need no hook, and report the version"
            f" of Ruby and what `rbtrace-py layout {pid}` prints.",
        )


@dataclass(frozen=True, slots=True)
class Selector:
    """Methods defined in ``owner`` (None: anywhere) and called ``name`` (None: any).

    Attributes:
        owner: Name of a class or module.
        kind: ``instance``, ``singleton``, or None for both.
        name: Name of the methods.
        expressions: Ruby expressions whose values are recorded with each call.
    """

    owner: str | None = None
    kind: str | None = None
    name: str | None = None
    expressions: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The selector in a user's notation, without expressions."""
        mark = {"instance": "#", "singleton": "."}.get(self.kind or "", "")
        return f"{self.owner or ''}{mark}{self.name or ''}"

    def arguments(self) -> Map:
        """Return the agent's arguments. Old agents may not support ``expressions``."""
        found: Map = {"owner": self.owner, "kind": self.kind, "name": self.name}
        if self.expressions:
            found["expressions"] = list(self.expressions)
        return found


@dataclass(frozen=True, slots=True)
class ArmRequest:
    """An arm request: the events to hook, and their processing (docs/agent/arming.md).

    Attributes:
        mode: The hook's mode.
        threshold_ns: In mode SLOW, the shortest duration of a slow call in ns.
        cpu: In mode SLOW, whether the threshold is CPU time of the thread.
        whole: In mode SLOW, whether to keep whole trees, not only their slow calls.
        select: Methods to hook; all if empty.
        histograms: In mode TABLE, whether to measure durations; otherwise calls are
            only counted.
        digits: Significant digits of the histograms, 2 or 3.
        offsets: Offsets in CRuby's structures, by their names in docs/agent/arming.md.
            If None, the agent determines them in Ruby.
    """

    mode: HookMode
    methods: bool = True
    c_calls: bool = False
    gc: bool = False
    exceptions: bool = False
    objects: bool = False
    sites: bool = False
    threshold_ns: int = 0
    cpu: bool = False
    whole: bool = False
    select: Sequence[Selector] = ()
    histograms: bool = True
    digits: int = DIGITS
    max_methods: int = 16_384
    max_streams: int = 128
    ring_records: int = 262_144
    offsets: dict[str, int] | None = None

    @property
    def names_methods(self) -> bool:
        """True if its methods may be hooked one by one."""
        return self.methods and bool(self.select) and self.mode in _TARGET_MODES

    def arguments(self) -> Map:
        """Return the arguments of the agent's command."""
        found: Map = {
            "mode": self.mode.name.lower(),
            "methods": self.methods,
            "c_calls": self.c_calls,
            "gc": self.gc,
            "raise": self.exceptions,
            "objects": self.objects,
            "sites": self.sites,
            "select": [each.arguments() for each in self.select],
            "histograms": self.histograms,
            "max_methods": self.max_methods,
            "max_streams": self.max_streams,
            "ring_records": self.ring_records,
        }
        if self.mode is HookMode.SLOW:
            slow = {"threshold_ns": self.threshold_ns}
            found |= {**slow, "cpu": self.cpu, "whole": self.whole}
        if self.digits != DIGITS:
            found["digits"] = self.digits
        if self.offsets is not None:
            found["offsets"] = self.offsets
        if os.environ.get(_UNTESTED) == "1":
            found["untested"] = True
        return found


def tick_scale(header: Header, now: ClockPair) -> TickScale:
    """Return the scale of the hook's ticks, from two pairs read some time apart."""
    ns = now.ns - header.loaded.ns
    ticks = now.ticks - header.loaded.ticks
    if header.clock is TicksOf.MONOTONIC:
        ns = ticks = 1
    least, most = _SCALES
    if ticks <= 0 or not least < ns / ticks < most:
        raise BrokenAgent("the agent's clock is not monotonic")
    return TickScale(header.armed.ticks, header.armed.ns, ticks, ns)


class Armed(Closing):
    """The armed hook of a process.

    Attributes:
        select: Selectors of the methods to hook.
        shared: The output memory of the hook.
        scale: Converts the hook's ticks to nanoseconds.
        overhead: Costs that remain after disarming, in the agent's words, safe to
            print.
        held: True if the program waited for the hook before it did anything.
        targets: Number of methods that were hooked one by one at first; None if all
            methods are hooked together.
        unmatched: Selectors that matched no method at first.
        near: Names similar to these selectors; safe to print.
        without_code: Selectors that matched only methods without Ruby code at first,
            such as methods written in C.
        native: True if a selected method is written in C; None if unknown.
        left_out: Names of selected methods that Ruby cannot hook one by one, safe to
            print.
        why_all: The reason why all methods are hooked although some were selected, safe
            to print, or empty.
        ended: The error that ended the events, NoSuchTarget if the process has ended;
            None until then.
        wall_offset: CLOCK_REALTIME minus ``scale.to_ns``, in ns.

    Raises:
        Unsupported: The agent cannot do this in the process.
        AgentError: The hook is already armed (``busy``), or ``Agent`` failed.
    """

    def __init__(
        self,
        process: Process,
        request: ArmRequest,
        before: Callable[[Map], None] = lambda hello: None,
        seconds: float = ARM_SECONDS,
        before_all: Callable[[Map, str], None] = lambda hello, why: None,
    ) -> None:
        """Arm the hook. Both callbacks get the agent's hello, and may raise.

        Args:
            process: The process.
            request: The arm request.
            before: Called before anything is done.
            seconds: Time limit of arming.
            before_all: Called before all methods, or those written in C, are hooked
                together. It also gets ``why_all``.
        """
        self._process = process
        self._names: list[CalledMethod] = []
        self._names_size = 0
        self._requested = 0  # methods whose names were requested
        self.select = tuple(request.select)
        self._learnt = time.monotonic()
        self.ended: RbtraceError | None = None
        self.shared: Any = None
        self.targets: int | None = None
        self.unmatched: tuple[Selector, ...] = ()
        self.near: tuple[str, ...] = ()
        self.without_code: tuple[Selector, ...] = ()
        self.native: bool | None = None
        self.left_out: tuple[str, ...] = ()
        self.why_all = ""
        self._agent = Agent(process)
        try:
            before(self._agent.hello)
            self._arm(request, seconds, before_all)
        except BaseException:
            self.close()
            raise

    @property
    def shares_natives(self) -> bool:
        """True if native threads run several Ruby threads each (RUBY_MN_THREADS=1)."""
        return "+MN" in (_text(self._agent.hello.get("description")) or "").split()

    def _arm(
        self,
        request: ArmRequest,
        seconds: float,
        before_all: Callable[[Map, str], None],
    ) -> None:
        hello = self._agent.hello
        if request.cpu and self.shares_natives:
            raise Unsupported(
                f"threads of process {self._process.pid} share native threads"
                " (RUBY_MN_THREADS=1): on-CPU times of calls are unknown"
            )
        if hello.get("native") is not True:
            raise Unsupported(
                f"the agent in process {self._process.pid} cannot see methods:"
                f" {_text(hello.get('native_reason')) or 'it has no hook'}"
            )
        self._agent.event_bound = bound_of_exit(request.max_methods)
        reply = self._order(request, seconds, before_all)
        files = self._agent.take_files()
        if len(files) != 2:
            raise MalformedAnswer("no shared memory was sent")
        self.shared = SharedMemory(*files)
        header = self.shared.header
        for name, found, most in (
            ("methods", header.methods.capacity, request.max_methods),
            ("histograms", header.blocks.capacity, MAX_BLOCKS),
            ("streams", header.streams.capacity, request.max_streams),
            ("records", header.ring_records, request.ring_records),
        ):
            if found > most:
                raise MalformedAnswer(f"more {name} than requested")
        if header.mode is not request.mode:
            raise MalformedAnswer("something else was armed than requested")
        targets = reply.get("targets")
        self.targets = targets if isinstance(targets, int) else None
        self.near = tuple(_texts(reply.get("near"), _MOST_NEAR, _NEAR_TEXT))
        native = reply.get("native")
        self.native = native if isinstance(native, bool) else None
        self._take_matches(reply)
        self.left_out = tuple(_texts(reply.get("left_out"), _MOST_LEFT_OUT, MAX_TEXT))
        self.overhead = tuple(_texts(reply.get("overhead"), _MOST_OVERHEAD, MAX_TEXT))
        self.held = reply.get("held") is True
        before = time.time_ns()
        try:
            pair = self.clock()
        except RbtraceError as error:
            # It may have ended already; its earlier events are still readable.
            self.ended = error
            self._take_events()
            pair = self.shared.header.armed
        self.scale = tick_scale(self.shared.header, pair)
        self.has_our_clock = self._process.namespace("time") == _own_time_namespace()
        if self.has_our_clock:
            self.wall_offset = wall_offset()
        else:
            self.wall_offset = (before + time.time_ns()) // 2 - pair.ns

    def _take_matches(self, reply: Map) -> None:
        """Store which selectors matched. An old agent reports one result for all."""
        if "unmatched" in reply:
            self.unmatched = self._selectors(reply["unmatched"])
            self.without_code = self._selectors(reply.get("without_code"))
        elif self.targets == 0 and self.native:
            self.without_code = self.select
        elif self.targets == 0:
            self.unmatched = self.select

    def _selectors(self, numbers: Any) -> tuple[Selector, ...]:
        items = numbers if isinstance(numbers, list) else []
        found = {number for number in items if isinstance(number, int)}
        return tuple(one for number, one in enumerate(self.select) if number in found)

    def _order(
        self,
        request: ArmRequest,
        seconds: float,
        before_all: Callable[[Map, str], None],
    ) -> Map:
        """Arm the methods one by one, or all together if that is impossible."""
        hello = self._agent.hello
        has_targets = request.names_methods and hello.get("targets") is True
        if request.c_calls or not has_targets:
            before_all(hello, "")
        arguments = request.arguments()
        if has_targets:
            try:
                return self._agent.call("arm", arguments | {"targets": True}, seconds)
            except AgentError as error:
                if error.code != "targets":
                    raise
                self.why_all = error.message[:MAX_TEXT]
            before_all(hello, self.why_all)
        return self._agent.call("arm", arguments, seconds)

    def close(self) -> None:
        """Close the connection, which removes the hook, and unmap the memory."""
        self._agent.close()
        if self.shared is not None:
            self.shared.close()

    def fileno(self) -> int:
        """Return the connection's descriptor, which is readable when events arrive."""
        return self._agent.fileno()

    def listen(self) -> None:
        """Read the agent's events; set ``ended`` if it closed the connection."""
        try:
            if not self._agent.listen():
                self.ended = self._agent.ended()
        except RbtraceError as error:
            self.ended = error
        self._take_events()

    def clock(self) -> ClockPair:
        """Return the hook's current clock."""
        reply = self._agent.call("clock")
        return ClockPair(_integer(reply.get("ticks")), _integer(reply.get("ns")))

    def look_at_clock(self) -> ClockPair | None:
        """Return ``clock``; if the agent does not answer, set ``ended`` instead."""
        try:
            return self.clock()
        except RbtraceError as error:
            self.ended = error
        self._take_events()
        return None

    def threads(self) -> dict[int, str]:
        """Return the names of its threads by kernel thread ID; "" for unnamed threads.

        The agent's threads, and threads that share native threads, are omitted. Before
        Ruby 3.1, which lacks these IDs, the result is empty. If the request fails, this
        sets ``ended``.
        """
        found = {}
        try:
            reply = self._agent.call("threads")
        except RbtraceError as error:
            self.ended = error
            self._take_events()
            return {}
        for thread in _maps(reply.get("threads")):
            number = thread.get("native_id")
            if self.shares_natives and thread.get("main") is not True:
                continue
            if isinstance(number, int) and thread.get("agent") is not True:
                found[number] = _text(thread.get("name"), _THREAD_NAME) or ""
        return found

    def method(self, index: int) -> CalledMethod:
        """Return the method of a number, requesting names that are not yet known."""
        unknown = max(len(self._names), self._requested)
        if index >= unknown and self.ended is None:
            self.learn()
        return self._names[index] if index < len(self._names) else UNKNOWN_METHOD

    @property
    def names(self) -> Sequence[CalledMethod]:
        """The methods known so far, by number."""
        return self._names

    def learn(self) -> None:
        """Request the names of all methods seen so far; set ``ended`` if that fails.

        All replies share one deadline. After half of the time, the rest is left for the
        next call, because busy threads delay each reply.
        """
        if self.ended is not None:
            return
        ends = time.monotonic() + HELLO_SECONDS
        try:
            counters = self.shared.counters()
            if counters.mismatch:
                raise HookMismatch(self._process.pid, counters.mismatch)
            last = counters.methods
            while len(self._names) < last:
                request = {"from": len(self._names), "count": NAMES_AT_ONCE}
                left = ends - time.monotonic()
                taken = self._take_names(self._agent.call("names", request, left))
                # The agent sends fewer names only after the last ones.
                if taken < NAMES_AT_ONCE:
                    break
                if time.monotonic() > ends - HELLO_SECONDS / 2:
                    last = len(self._names)
                    break
            self._requested = last
        except RbtraceError as error:
            self.ended = error
        self._take_events()

    def keep_learning(self) -> None:
        """Request names at intervals, because a killed process cannot report them."""
        now = time.monotonic()
        if self.ended is None and now - self._learnt >= LEARN_SECONDS:
            self._learnt = now
            self.learn()

    def begin_end(self) -> None:
        """Set one deadline for all further requests."""
        self._agent.end_within(END_SECONDS)

    def disarm(self) -> bool:
        """Remove the hook; return False if the agent did not confirm it."""
        if self.ended is not None:
            return False
        try:
            reply = self._agent.call("disarm")
            self._take_names({"methods": reply.get("names", [])})
        except RbtraceError as error:
            self.ended = error
            return False
        return True

    def counters(self) -> Counters:
        """Return the memory's counters, even after the end."""
        found: Counters = self.shared.counters()
        return found

    def _take_events(self) -> None:
        for event in self._agent.events:
            if event.get("event") == "exit":
                with suppress(BrokenAgent):
                    self._take_names(event)
        self._agent.events.clear()

    def _take_names(self, reply: Map) -> int:
        """Append methods that follow the known ones; return how many were appended."""
        capacity = self.shared.header.methods.capacity
        before = len(self._names)
        for found in _maps(reply.get("methods")):
            if found.get("index") == len(self._names) < capacity:
                most = MAX_TEXT if self._names_size < MAX_NAMES else SHORT_TEXT
                method = _method(found, most)
                texts = (method.owner, method.name, method.path)
                self._names_size += sum(len(text) for text in texts if text)
                self._names.append(method)
        return len(self._names) - before


def _own_time_namespace() -> int | None:
    try:
        return os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return None


def _method(found: Map, most: int) -> CalledMethod:
    """Parse a method, cutting each name or path to ``most`` characters."""
    kind = found.get("kind")
    if not isinstance(kind, int) or not 0 <= kind <= max(MethodKind):
        raise MalformedAnswer(f"a method of kind {kind!r}")
    if kind == MethodKind.NO_ROOM:
        return NO_ROOM_METHOD
    line = found.get("line")
    return CalledMethod(
        MethodKind(kind),
        _text(found.get("owner"), most),
        found.get("singleton") is True,
        _text(found.get("name"), most),
        _text(found.get("path"), most),
        line if isinstance(line, int) else None,
    )


def _maps(found: Any) -> list[Map]:
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise MalformedAnswer("no array of maps")
    return found


def _text(found: Any, most: int = MAX_TEXT) -> str | None:
    return found[:most] if isinstance(found, str) else None


def _texts(found: Any, number: int, most: int) -> list[str]:
    """Return at most ``number`` strings, each of at most ``most`` characters."""
    items = found if isinstance(found, list) else []
    return [item[:most] for item in items[:number] if isinstance(item, str)]


def _integer(found: Any) -> int:
    if not isinstance(found, int):
        raise MalformedAnswer("it lacks a number")
    return found
