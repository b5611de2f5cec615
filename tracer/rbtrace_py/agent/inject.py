"""Injection of Ruby code into a process without our code.

The main thread is stopped for about a millisecond and made to call three functions.
``mmap`` allocates memory for the text. A function that signal handlers may call
registers a job, which evaluates the text at the next safe point. Ruby's own signal
handler, for a signal that Ruby ignores, wakes the thread. The injected code
acknowledges that it runs. Until then, the attempt is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.agent.addresses import RubyAddresses, find_landing
from rbtrace_py.agent.attempt import Attempts, Step
from rbtrace_py.agent.detour import Busy, Late
from rbtrace_py.agent.refusal import check, check_program, refuse
from rbtrace_py.errors import TASKS_HINT, RbtraceError
from rbtrace_py.linux.backoff import Backoff
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process, gone
from rbtrace_py.linux.ptrace.tracing_thread import in_a_thread

__all__ = ["Injection", "NotAcknowledged", "check", "inject"]

_FIRST_WAIT, _LONGEST_WAIT = 1.5, 3.0
"""Seconds until the next attempt. Each stops the process, and few are needed: a busy
thread keeps the GVL for 0.1 s, and the code has to wait for it twice."""
_BUSY_WAIT, _LONGEST_BUSY_WAIT, _LATE_WAIT = 0.002, 0.2, 0.2
LONGEST_POLL = 0.01
"""Longest pause between two polls, in seconds. The loaded agent waits 0.02 s for us
(``welcome``, server.rb). If we connect later, it must wait for the GVL first."""


class NotAcknowledged(RbtraceError):
    """The code did not run in time, and will not run later."""


@dataclass(frozen=True, slots=True)
class Injection:
    """The cost of an injection.

    Attributes:
        stopped_ns: Total time that the main thread was stopped.
        longest_ns: Longest stop.
        attempts: Number of attempts.
        answer_ns: Time from the beginning to the acknowledgement.
    """

    stopped_ns: int
    longest_ns: int
    attempts: int
    answer_ns: int


def _nothing(step: str) -> None:
    pass


def inject(
    process: Process,
    ruby: RubyAddresses,
    code: bytes,
    acknowledged: Callable[[], bool],
    limit: float = 10.0,
    at: Step = _nothing,
) -> Injection:
    """Make ``process`` evaluate ``code``, and wait until this is ``acknowledged``.

    Args:
        process: The process.
        ruby: Addresses in its Ruby.
        code: Ruby text. It runs in the context of a trap handler, maybe twice. It
            should start a thread. Starting a second such thread must be harmless.
        acknowledged: Returns whether the code has run.
        limit: Time limit in seconds.
        at: Called at each step.

    Raises:
        NotAcknowledged: The code did not run in time.
        NoSuchTarget: The process has ended.
        RbtraceError: As ``check``. The process is then unchanged, except by the code.
    """
    began = time.monotonic_ns()
    check(process, ruby)
    landing = find_landing(process)
    if landing is None:
        raise refuse(process, "its C library has no signal return function")
    if landing.mmap is None:
        raise refuse(process, "its C library does not export mmap")
    with MemoryFile(process) as memory:
        attempts = Attempts(process, ruby, landing, memory, code, at)
        try:
            _until(process, ruby, attempts, acknowledged, time.monotonic() + limit)
        except RbtraceError:
            check_program(process, ruby.program)
            raise
        finally:
            with suppress(RbtraceError):
                attempts.blank()
    answer_ns = time.monotonic_ns() - began
    stops = attempts.stops
    return Injection(sum(stops), max(stops, default=0), len(stops), answer_ns)


def _until(
    process: Process,
    ruby: RubyAddresses,
    attempts: Attempts,
    acknowledged: Callable[[], bool],
    deadline: float,
) -> None:
    """Repeat attempts at growing intervals."""
    wait, busy_wait = _FIRST_WAIT, _BUSY_WAIT
    failure: RbtraceError = NotAcknowledged(
        f"process {process.pid} did not run the code in time",
        "Raise --timeout; `rbtrace-py dump` shows which call may hold the GVL. If it"
        f" cannot start threads: {TASKS_HINT}",
    )
    while True:
        try:
            in_a_thread(attempts.attempt)
            pause, wait = wait, min(2 * wait, _LONGEST_WAIT)
        except Busy as error:
            # Each attempt stops the process.
            failure, pause = error, busy_wait
            busy_wait = min(2 * busy_wait, _LONGEST_BUSY_WAIT)
        except Late as error:
            failure, pause = error, _LATE_WAIT
        until = min(time.monotonic() + pause, deadline)
        if _await(process, acknowledged, until, attempts.is_missed):
            return
        check_program(process, ruby.program)
        if time.monotonic() >= deadline:
            raise failure


def _await(
    process: Process,
    acknowledged: Callable[[], bool],
    until: float,
    is_missed: Callable[[], bool],
) -> bool:
    backoff = Backoff(0.001, LONGEST_POLL)
    while not acknowledged():
        left = until - time.monotonic()
        if left <= 0 or is_missed():
            return False
        if process.wait(min(backoff.pause(), max(left, 0.001))):
            raise gone(process.pid)
    return True
