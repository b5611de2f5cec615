"""One attempt to evaluate code: stop the thread, register a job, wake it, resume."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from rbtrace_py.agent.addresses import Landing, RubyAddresses
from rbtrace_py.agent.detour import Detour
from rbtrace_py.agent.filtered import denied_call
from rbtrace_py.agent.jobs import find_handle
from rbtrace_py.agent.refusal import check_program, check_state, refuse
from rbtrace_py.agent.text import ROOM_SIZE, Text, is_room, room_address
from rbtrace_py.errors import RbtraceError, UnreadableMemory
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process, parse_status
from rbtrace_py.linux.ptrace.seccomp import can_read_filters
from rbtrace_py.linux.ptrace.thread_filters import read_filters
from rbtrace_py.linux.ptrace.tracee import Tracee

Step = Callable[[str], None]

_LONGEST = 1.0
"""Seconds that the process may be stopped; then it continues without us."""

_ASKED = (2, 15, 1, 14, 10, 12)
"""Signals that Ruby handles by default: INT, TERM, HUP, ALRM, USR1, USR2."""
_MOST_ASKED = 3
_MEANINGLESS = (16, 30, 29)
"""STKFLT, PWR, IO: Ruby's handler records such a signal, and its main thread wakes up.
It has no effect unless the program traps it (``rb_signal_exec``, signal.c)."""
_READ_WRITE = 0x1 | 0x2
_MAP = 0x02 | 0x20 | 0x100000
"""MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE (asm-generic/mman-common.h)."""
_NO_FILE = (1 << 64) - 1
_SIGACTION_SIZE = 160
"""The C library's ``struct sigaction`` has 152 bytes; the handler is first."""


class Attempts:
    """Attempts with one text, which is written once and used by all of them.

    Each attempt must be made in a new thread.
    """

    def __init__(
        self,
        process: Process,
        ruby: RubyAddresses,
        landing: Landing,
        memory: MemoryFile,
        code: bytes,
        at: Step,
    ) -> None:
        self._process = process
        self._ruby = ruby
        self._landing = landing
        self._memory = memory
        self._code = code
        self._at = at
        self._text: Text | None = None
        self._handler: int | None = None
        self._is_handler_known = False
        self._is_checked = not ruby.filters
        self._announced_to: bytes | None = None
        self._was_missed = False
        self.stops: list[int] = []

    def attempt(self) -> None:
        """Make Ruby evaluate the text at its next safe point.

        Raises:
            Busy, Late, Stopped: See ``detour``.
            Refused, NotPermitted, NoSuchTarget: See ``check``.
        """
        if not self._is_checked:
            self._check_filters()
        if self._ruby.register_one:
            self._lead(self._register_one, is_waking=True)
            return
        number = self._number()
        if number is None:
            self._lead(self._preregister, is_waking=False)
            number = self._number()
        if number is None:
            raise refuse(self._process, "its Ruby has no free slot for a postponed job")
        trigger = self._ruby.trigger or 0
        self._lead(lambda text: (trigger, number), is_waking=True)

    def _check_filters(self) -> None:
        """Raise Refused if its seccomp filters forbid a system call that we need."""
        check_state(self._process, self._ruby)
        if not can_read_filters():
            return
        filters, stopped_ns = read_filters(self._process, self._process.pid)
        self.stops.append(stopped_ns)
        if name := denied_call(filters):
            raise refuse(
                self._process,
                f"its filter of system calls (seccomp) forbids {name}",
            )
        self._is_checked = True

    def _seize(self) -> Detour:
        deadline = time.monotonic() + _LONGEST
        tracee = Tracee(self._process)
        self._at("seized")
        restore = self._landing.restore
        return Detour(self._process, tracee, self._memory, restore, deadline, self._at)

    def blank(self) -> None:
        """Prevent the evaluation of the text: a job that still waits finds it empty."""
        if self._text is not None:
            self._text.blank()
            self._at("blanked")

    def is_missed(self) -> bool:
        """Return, once, whether the job was announced to a sleeping thread.

        This happens if another thread was woken. The next attempt announces the job
        to that thread.
        """
        if self._announced_to in (None, self._current_ec()):
            return False
        self._announced_to, self._was_missed = None, True
        return True

    def _current_ec(self) -> bytes | None:
        place = self._ruby.current_ec
        return None if place is None else self._memory.read(place, 8)

    def _register_one(self, text: int) -> tuple[int, ...]:
        """Repeated calls are harmless: Ruby registers a waiting function only once."""
        return (self._ruby.register_one or 0, 0, self._ruby.eval_string or 0, text)

    def _preregister(self, text: int) -> tuple[int, ...]:
        return (self._ruby.preregister or 0, 0, self._ruby.eval_string or 0, text)

    def _number(self) -> int | None:
        """Return the number of the job that evaluates the text, or None."""
        if self._text is None:
            return None
        memory = ProcessMemory(self._process.pid, self._process)
        code = [m for m in mappings(self._process) if m.is_executable]
        return find_handle(
            memory,
            self._ruby.vm,
            self._ruby.job_tables,
            (self._ruby.eval_string or 0, self._text.address),
            lambda address: any(m.start <= address < m.end for m in code),
        )

    def _lead(self, job: Callable[[int], tuple[int, ...]], is_waking: bool) -> None:
        check_state(self._process, self._ruby)
        caught = self._caught()
        detour = self._seize()
        address = room_address(self._ruby.vm)
        has_room = self._text is not None or is_room(self._process, address)
        detour.stop()
        try:
            check_program(self._process, self._ruby.program)
        except RbtraceError:
            detour.finish()
            raise
        if not has_room:
            self._make_room(detour, address)
        if self._text is None:
            self._text = Text(self._memory, address, self._code)
            self._at("text")
        detour.run(*job(self._text.address))
        # A thread on CPU notices the job by itself; each call costs some stops.
        if is_waking and detour.is_in_call:
            if not self._was_missed:
                self._announced_to = self._current_ec()
            self._wake(detour, caught)
        detour.finish()
        self.stops.append(detour.stopped_ns)

    def _make_room(self, detour: Detour, address: int) -> None:
        """Make the process map memory; release the process if that fails.

        The return value of mmap is lost, so the address is fixed and checked
        afterwards. Before Linux 4.17 the address is a hint, which the kernel uses if it
        is free.
        """
        mmap = self._landing.mmap or 0
        detour.run(mmap, address, ROOM_SIZE, _READ_WRITE, _MAP, _NO_FILE, 0)
        self._at("mapped")
        try:
            self._memory.read(address, ROOM_SIZE)
        except UnreadableMemory:
            detour.finish()
            raise refuse(
                self._process,
                f"it cannot map {ROOM_SIZE} bytes for the code",
                f"Raise its memory limit: prlimit --pid {self._process.pid} --as=…",
            ) from None

    def _wake(self, detour: Detour, caught: set[int]) -> None:
        """Call Ruby's own signal handler, if its address is certain."""
        if not self._is_handler_known:
            self._handler = self._find_handler(detour, caught)
            self._is_handler_known = True
        signal = next((s for s in _MEANINGLESS if s not in caught), None)
        if self._handler is not None and signal is not None:
            detour.run(self._handler, signal, 0, 0)

    def _caught(self) -> set[int]:
        """Return the signals that have a handler."""
        status = parse_status(self._process.read("status"))
        caught = int(status.get("SigCgt", "0"), 16)
        return {number for number in range(1, 65) if caught >> number - 1 & 1}

    def _find_handler(self, detour: Detour, caught: set[int]) -> int | None:
        """Return the handler that two signals share, if it is in Ruby's code."""
        sigaction = self._landing.sigaction
        candidates = [s for s in _ASKED if s in caught][:_MOST_ASKED]
        if sigaction is None or len(candidates) < 2:
            return None
        place = detour.reserve(_SIGACTION_SIZE)
        found: set[int] = set()
        for signal in candidates:
            detour.run(sigaction, signal, 0, place)
            (handler,) = struct.unpack("<Q", detour.read(place, 8))
            if handler in found:
                return handler if self._ruby.is_code(handler) else None
            found.add(handler)
        return None
