"""Having the agent's hook registered: what it is to see, names, its clock, the end.

``Armed`` holds the connection. When that ends, however it ends, the agent takes the
hook out; the memory stays readable until ``close``.
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
"""Of histograms, where no other number is requested."""
END_SECONDS = 10
"""Seconds for all that is requested at the end of a session."""
LEARN_SECONDS = 0.1
"""Between two questions for names that nobody needs yet."""
MAX_TEXT = 1024
"""Characters of a name or path that are kept."""
MAX_NAMES = 16 << 20
"""Characters of all methods' names and paths; later ones are cut to SHORT_TEXT."""
SHORT_TEXT = 64
_MOST_NEAR = 1000
"""Similar names that are kept, as many as an agent sends."""
_NEAR_TEXT = 100
"""Characters of a similar name, as it takes long to compare long names."""
_MOST_LEFT_OUT = 1000
"""Names of methods that are left out, as many as an agent hooks one by one."""
_MOST_OVERHEAD = 16
_THREAD_NAME = 128
"""Characters of a thread's name that are kept."""
_UNTESTED = "RBTRACE_UNTESTED_RUBY"
_MISMATCHES = {
    1: "the event",
    2: "self",
    3: "the control frame",
    4: "the method of a frame",
}
"""By their numbers in the header: docs/agent/memory.md."""
_TARGET_MODES = (HookMode.RING, HookMode.TABLE, HookMode.SLOW)
_SCALES = (0.01, 100_000)
"""Nanoseconds that a tick may take: of 100 GHz down to 10 kHz."""


class Unsupported(RbtraceError):
    """The agent has no hook for this Ruby or machine."""


class HookMismatch(RbtraceError):
    """The hook disarmed itself, as it read something otherwise than Ruby does."""

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
    """Methods that are defined in ``owner`` (None: anywhere) and called ``name`` (any).

    kind: ``instance``, ``singleton``, None: both
    expressions: in Ruby, whose values are to be told with each call
    """

    owner: str | None = None
    kind: str | None = None
    name: str | None = None
    expressions: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The selector as a user writes it, without expressions."""
        mark = {"instance": "#", "singleton": "."}.get(self.kind or "", "")
        return f"{self.owner or ''}{mark}{self.name or ''}"

    def arguments(self) -> Map:
        """Return the agent's arguments; an old one may not know ``expressions``."""
        found: Map = {"owner": self.owner, "kind": self.kind, "name": self.name}
        if self.expressions:
            found["expressions"] = list(self.expressions)
        return found


@dataclass(frozen=True, slots=True)
class What:
    """Events to see, and what becomes of them (docs/agent/arming.md).

    threshold_ns, cpu, whole: of mode SLOW; cpu: it is of the thread's CPU time
    select: of which methods; none: of every one
    histograms: of mode TABLE; without them there are no times either, just entries
    digits: of the histograms, 2 or 3
    offsets: of CRuby's structures, by docs/agent/arming.md's names; None: Ruby is asked
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
        """May its methods be hooked one by one?"""
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
    """Return the hook's clock's scale, by two pairs read some time apart."""
    ns = now.ns - header.loaded.ns
    ticks = now.ticks - header.loaded.ticks
    if header.clock is TicksOf.MONOTONIC:
        ns = ticks = 1
    least, most = _SCALES
    if ticks <= 0 or not least < ns / ticks < most:
        raise BrokenAgent("the agent's clock is not monotonic")
    return TickScale(header.armed.ticks, header.armed.ns, ticks, ns)


class Armed(Closing):
    """A process's hook, registered.

    Attributes:
        select: Selectors of the methods to hook.
        shared: The output memory of the hook.
        scale: Converts the hook's ticks to nanoseconds.
        overhead: Costs that remain after it is disarmed, in the agent's words, safe to
            show.
        held: True if the program waited for the hook before it did anything.
        targets: Number of methods that were hooked one by one at first; None if all
            methods are hooked together.
        unmatched: Selectors that matched no method at first.
        near: Names similar to these selectors; safe to show.
        without_code: Selectors that matched only methods without Ruby code at first, as
            those written in C.
        native: True if a selected method is written in C; None if unknown.
        left_out: Names of selected methods that Ruby cannot hook one by one, safe to
            show.
        why_all: The reason why all methods are hooked although some were selected,
            safe to show, or empty.
        ended: The error that ended the events, NoSuchTarget if the process has ended;
            None until then.
        wall_offset: CLOCK_REALTIME minus ``scale.to_ns``, in ns.

    Raises:
        Unsupported: The agent cannot do this in the process.
        AgentError: The hook is armed already (``busy``), or what ``Agent`` raises.
    """

    def __init__(
        self,
        process: Process,
        what: What,
        before: Callable[[Map], None] = lambda hello: None,
        seconds: float = ARM_SECONDS,
        before_all: Callable[[Map, str], None] = lambda hello, why: None,
    ) -> None:
        """Both get the agent's hello, and may raise; seconds: that it may take.

        before: before anything is done
        before_all: before all methods are hooked at once, or those written in C; gets
            ``why_all`` as well
        """
        self._process = process
        self._names: list[CalledMethod] = []
        self._names_size = 0
        self._requested = 0  # methods whose names were requested
        self.select = tuple(what.select)
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
            self._arm(what, seconds, before_all)
        except BaseException:
            self.close()
            raise

    @property
    def shares_natives(self) -> bool:
        """Does a native thread run several Ruby threads (RUBY_MN_THREADS=1)?"""
        return "+MN" in (_text(self._agent.hello.get("description")) or "").split()

    def _arm(
        self, what: What, seconds: float, before_all: Callable[[Map, str], None]
    ) -> None:
        hello = self._agent.hello
        if what.cpu and self.shares_natives:
            raise Unsupported(
                f"threads of process {self._process.pid} share native threads"
                " (RUBY_MN_THREADS=1): on-CPU times of calls are unknown"
            )
        if hello.get("native") is not True:
            raise Unsupported(
                f"the agent in process {self._process.pid} cannot see methods:"
                f" {_text(hello.get('native_reason')) or 'it has no hook'}"
            )
        self._agent.event_bound = bound_of_exit(what.max_methods)
        reply = self._order(what, seconds, before_all)
        files = self._agent.take_files()
        if len(files) != 2:
            raise MalformedAnswer("no shared memory was sent")
        self.shared = SharedMemory(*files)
        header = self.shared.header
        for name, found, most in (
            ("methods", header.methods.capacity, what.max_methods),
            ("histograms", header.blocks.capacity, MAX_BLOCKS),
            ("streams", header.streams.capacity, what.max_streams),
            ("records", header.ring_records, what.ring_records),
        ):
            if found > most:
                raise MalformedAnswer(f"more {name} than requested")
        if header.mode is not what.mode:
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
            # It may have ended already; what it did until then can be read.
            self.ended = error
            self._take_events()
            pair = self.shared.header.armed
        self.scale = tick_scale(self.shared.header, pair)
        self.has_our_clock = self._process.namespace("time") == _own_time_namespace()
        if self.has_our_clock:
            self.wall_offset = time.time_ns() - time.monotonic_ns()
        else:
            self.wall_offset = (before + time.time_ns()) // 2 - pair.ns

    def _take_matches(self, reply: Map) -> None:
        """Take in which selectors matched; an old agent tells of all together."""
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
        self, what: What, seconds: float, before_all: Callable[[Map, str], None]
    ) -> Map:
        """Have the methods hooked one by one, or all at once where that cannot be."""
        hello = self._agent.hello
        has_targets = what.names_methods and hello.get("targets") is True
        if what.c_calls or not has_targets:
            before_all(hello, "")
        arguments = what.arguments()
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
        """End the connection, which takes the hook out, and let the memory go."""
        self._agent.close()
        if self.shared is not None:
            self.shared.close()

    def fileno(self) -> int:
        """Readable when ``listen`` has something to hear, as of the process's end."""
        return self._agent.fileno()

    def listen(self) -> None:
        """Hear what the agent says unasked; ``ended`` is set when it hung up."""
        try:
            if not self._agent.listen():
                self.ended = self._agent.ended()
        except RbtraceError as error:
            self.ended = error
        self._take_events()

    def clock(self) -> ClockPair:
        """The hook's clock, now."""
        reply = self._agent.call("clock")
        return ClockPair(_integer(reply.get("ticks")), _integer(reply.get("ns")))

    def look_at_clock(self) -> ClockPair | None:
        """Return ``clock``; None, and set ``ended``, if the agent does not answer."""
        try:
            return self.clock()
        except RbtraceError as error:
            self.ended = error
        self._take_events()
        return None

    def threads(self) -> dict[int, str]:
        """Names of its threads that have one, by kernel thread id; "" for others.

        Without the agent's own, and those that share native threads; empty before Ruby
        3.1, which has no such ids; sets ``ended`` if it cannot be asked.
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
        """Return a number's method; ask the agent for those not yet known."""
        unknown = max(len(self._names), self._requested)
        if index >= unknown and self.ended is None:
            self.learn()
        return self._names[index] if index < len(self._names) else UNKNOWN_METHOD

    @property
    def names(self) -> Sequence[CalledMethod]:
        """The methods that are known so far, by number."""
        return self._names

    def learn(self) -> None:
        """Ask for the names of all methods seen so far; sets ``ended`` if it cannot.

        All the replies together have one deadline. If half of the time is over, the
        rest is requested next time: busy threads delay each reply.
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
                # An agent sends fewer only if it has no more.
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
        """Learn, if it is time to: of a process that is killed no name can be had."""
        now = time.monotonic()
        if self.ended is None and now - self._learnt >= LEARN_SECONDS:
            self._learnt = now
            self.learn()

    def begin_end(self) -> None:
        """Give all that is requested from now on one deadline."""
        self._agent.end_within(END_SECONDS)

    def disarm(self) -> bool:
        """Have the hook taken out; False: it is, but the agent did not say so."""
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
        """Return the memory's counters, also when all has ended."""
        found: Counters = self.shared.counters()
        return found

    def _take_events(self) -> None:
        for event in self._agent.events:
            if event.get("event") == "exit":
                with suppress(BrokenAgent):
                    self._take_names(event)
        self._agent.events.clear()

    def _take_names(self, reply: Map) -> int:
        """Append the methods that follow the known ones; return how many there were."""
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
    """most: characters of a name or path"""
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
    """Return at most ``number`` texts, each of at most ``most`` characters."""
    items = found if isinstance(found, list) else []
    return [item[:most] for item in items[:number] if isinstance(item, str)]


def _integer(found: Any) -> int:
    if not isinstance(found, int):
        raise MalformedAnswer("it lacks a number")
    return found
