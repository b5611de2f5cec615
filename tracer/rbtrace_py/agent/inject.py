"""Ruby code put into a process that never loaded anything of ours.

The text goes into spare memory while the process runs. Then its main thread is stopped
for about a millisecond, and led through the two functions that a signal handler of
Ruby's may call: one that has the text evaluated at the next safe moment, and Ruby's own
handler, for a signal that means nothing to it, which wakes who sleeps. What runs then
tells us so. Until it does, the same is done again.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rbtrace_py.agent.addresses import Landing, RubyAddresses, find_landing
from rbtrace_py.agent.detour import Busy, Call, Detour
from rbtrace_py.agent.jobs import find_handle
from rbtrace_py.agent.refusal import check, check_state, refuse
from rbtrace_py.agent.text import Text
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.memfile import MemoryFile
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process, gone, parse_status
from rbtrace_py.linux.tracee import Tracee

__all__ = ["Injection", "NotAcknowledged", "check", "inject"]

_LONGEST_STOP = 1.0
"""Seconds an attempt may take; then the process goes on without us."""
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 2.0
"""Seconds until the next attempt: a busy thread keeps Ruby's lock for 0.1 s."""
_BUSY_WAIT = 0.002

_ASKED = (2, 15, 1, 14, 10, 12)
"""Signals that Ruby handles unless told otherwise: INT, TERM, HUP, ALRM, USR1, USR2."""
_MOST_ASKED = 3
_MEANINGLESS = (16, 30, 29)
"""STKFLT, PWR, IO: Ruby's handler notes them, and nothing comes of it."""
_SIGACTION_SIZE = 160
"""``struct sigaction`` of the C library is 152 bytes; the handler stands first."""


class NotAcknowledged(RbtraceError):
    """The code was not run in time; it will not be any more."""


@dataclass(slots=True)
class Injection:
    """What it took.

    stopped_ns, longest_ns: for how long the main thread stood, in all and at once
    attempts: how often
    answer_ns: from the beginning to the acknowledgement
    """

    stopped_ns: int = 0
    longest_ns: int = 0
    attempts: int = 0
    answer_ns: int = 0


def _nothing(step: str) -> None:
    pass


def inject(
    process: Process,
    ruby: RubyAddresses,
    code: bytes,
    acknowledged: Callable[[], bool],
    limit: float = 10.0,
    at: Callable[[str], None] = _nothing,
) -> Injection:
    """Have ``code`` evaluated in ``process``; return when it is ``acknowledged``.

    code: Ruby text of one line. It runs where a signal's trap would, maybe twice: it
    should begin a thread, and that do no harm if done again.
    limit: seconds; at: told of each step

    Raises what ``check`` does, NotAcknowledged, NoSuchTarget; the process is as it was
    then, but for what the code did.
    """
    began = time.monotonic_ns()
    check(process, ruby)
    landing = find_landing(process)
    if landing is None or not landing.rooms:
        raise refuse(process, "its C library has nothing to return through")
    with MemoryFile(process) as memory:
        text = Text(memory, landing.rooms, code)
        at("text")
        try:
            attempts = _Attempts(process, ruby, landing, memory, text.address, at)
            injection = attempts.until(acknowledged, time.monotonic() + limit)
        finally:
            with suppress(RbtraceError):
                text.blank()
    injection.answer_ns = time.monotonic_ns() - began
    return injection


@dataclass(slots=True)
class _Attempts:
    process: Process
    ruby: RubyAddresses
    landing: Landing
    memory: MemoryFile
    text: int
    at: Callable[[str], None]
    injection: Injection = field(default_factory=Injection)
    _handler: int | None = None
    _is_handler_sought: bool = False

    def until(self, acknowledged: Callable[[], bool], deadline: float) -> Injection:
        """Try again and again, longer apart each time."""
        wait = _FIRST_WAIT
        while True:
            try:
                self._in_a_thread(self._attempt)
                pause, wait = wait, min(2 * wait, _LONGEST_WAIT)
            except Busy:
                pause = _BUSY_WAIT
            if self._await(acknowledged, min(time.monotonic() + pause, deadline)):
                return self.injection
            if time.monotonic() >= deadline:
                raise NotAcknowledged(
                    f"process {self.process.pid} did not run the code in time",
                    "it may be in a long call that keeps Ruby's lock: `rbtrace-py"
                    " dump` shows it; try again with a longer --timeout",
                )

    def _await(self, acknowledged: Callable[[], bool], until: float) -> bool:
        pause = 0.0005
        while not acknowledged():
            left = until - time.monotonic()
            if left <= 0:
                return False
            if self.process.wait(min(pause, left)):
                raise gone(self.process.pid)
            pause = min(2 * pause, 0.02)
        return True

    def _in_a_thread(self, attempt: Callable[[], None]) -> None:
        """ptrace knows us by the thread; and no Ctrl-C breaks into this one."""
        errors: list[BaseException] = []

        def work() -> None:
            try:
                attempt()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="rbtrace-inject", daemon=True)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def _attempt(self) -> None:
        """Have the text evaluated, and whoever sleeps woken."""
        ruby = self.ruby
        if ruby.register_one:
            job = (ruby.register_one, (0, self._eval, self.text))
        else:
            assert ruby.trigger
            job = (ruby.trigger, (self._number(),))
        self._stop_and([job], is_waking=True)

    @property
    def _eval(self) -> int:
        assert self.ruby.eval_string
        return self.ruby.eval_string

    def _number(self) -> int:
        """That of a job that evaluates the text, made where there is none."""
        assert self.ruby.preregister
        memory = ProcessMemory(self.process.pid)
        for attempt in range(2):
            number = find_handle(memory, self.ruby.vm, self._eval, self.text)
            if number is not None:
                return number
            if attempt == 0:
                make = (self.ruby.preregister, (0, self._eval, self.text))
                self._stop_and([make], is_waking=False)
        raise refuse(self.process, "its Ruby has no room for a further postponed job")

    def _stop_and(self, calls: list[Call], is_waking: bool) -> None:
        check_state(self.process)
        caught = self._caught()
        deadline = time.monotonic() + _LONGEST_STOP
        tracee = Tracee(self.process)
        self.at("seized")
        began = time.monotonic_ns()
        try:
            restore = self.landing.restore
            detour = Detour(
                self.process, tracee, self.memory, restore, deadline, self.at
            )
            detour.stop()
            if is_waking:
                calls = [*calls, *self._wake(detour, caught)]
            detour.run(calls)
            detour.finish()
        finally:
            stopped = time.monotonic_ns() - began
            self.injection.attempts += 1
            self.injection.stopped_ns += stopped
            self.injection.longest_ns = max(self.injection.longest_ns, stopped)

    def _wake(self, detour: Detour, caught: set[int]) -> list[Call]:
        if not self._is_handler_sought:
            self._handler = self._find_handler(detour, caught)
            self._is_handler_sought = True
        signal = next((s for s in _MEANINGLESS if s not in caught), None)
        if self._handler is None or signal is None:
            return []
        return [(self._handler, (signal, 0, 0))]

    def _caught(self) -> set[int]:
        """Signals with a handler."""
        status = parse_status(self.process.read("status"))
        caught = int(status.get("SigCgt", "0"), 16)
        return {number for number in range(1, 65) if caught >> number - 1 & 1}

    def _find_handler(self, detour: Detour, caught: set[int]) -> int | None:
        """The handler that most signals share, if it is in Ruby itself."""
        sigaction = self.landing.sigaction
        asked = [s for s in _ASKED if s in caught][:_MOST_ASKED]
        if sigaction is None or len(asked) < 2:
            return None
        room = detour.reserve(_SIGACTION_SIZE * len(asked))
        places = range(room, room + _SIGACTION_SIZE * len(asked), _SIGACTION_SIZE)
        detour.run([(sigaction, (s, 0, p)) for s, p in zip(asked, places, strict=True)])
        found = [struct.unpack("<Q", detour.read(place, 8))[0] for place in places]
        handler, count = Counter(found).most_common(1)[0]
        return handler if count >= 2 and self.ruby.is_code(handler) else None
