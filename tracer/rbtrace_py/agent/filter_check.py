"""The seccomp filters of an agent's thread, checked before each of its commands.

A filter may kill the process for a system call of a command. `attach` checks only its
own system calls, and nothing checks an agent that the program loads itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rbtrace_py.agent.filtered import fatal_call
from rbtrace_py.agent.refusal import DEFAULT_FILTERS, Refused, filters_of
from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.linux.process import Process, parse_status
from rbtrace_py.linux.ptrace.seccomp import Filter, can_read_filters
from rbtrace_py.linux.ptrace.thread_filters import read_filters

_NAME = "rbtrace agent"
_WITHOUT_AGENT = "Use a command that needs no agent: dump, stacks, top, record"
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # commands print it; library users may


@dataclass(slots=True)
class _Known:
    """Filters of a thread (None: unreadable), and the commands that they allow."""

    filters: Sequence[Filter] | None
    passed: set[str] = field(default_factory=set)


_known: dict[tuple[int, int, int], _Known] = {}
"""Known filters by process, start time, and their number, which can only grow."""
_threads: dict[tuple[int, int], int] = {}
"""A thread of the agent, by process and start time."""


def check_filters(process: Process, command: str) -> bool:
    """Check a command before the agent runs it.

    If the thread of the agent has filters that we may read and have not read yet, it is
    stopped briefly. The log announces this.

    Returns:
        False if the thread has filters that cannot be read, which is logged once.

    Raises:
        Refused: A filter kills the process for a system call of the command.
        NoSuchTarget: The process has ended.
    """
    known = _filters(process)
    if known is None:
        return True
    if known.filters is None:
        return False
    if command not in known.passed:
        if name := fatal_call(known.filters, command):
            raise Refused(
                f"process {process.pid}: its seccomp filter kills it for {name}, which"
                " the agent would call",
                _WITHOUT_AGENT,
            )
        known.passed.add(command)
    return True


def _filters(process: Process) -> _Known | None:
    """Return the filters of a thread of the agent; None without filters."""
    while True:
        tid, count = _thread(process)
        if count == 0:
            return None
        key = (*process.identity, count)
        if key not in _known:
            try:
                _known[key] = _Known(_read(process, tid))
            except NoSuchTarget:
                # The thread of another command's connection may have ended.
                if tid in process.threads() or not process.alive():
                    raise
                _threads.pop(process.identity, None)
                continue
        return _known[key]


def _thread(process: Process) -> tuple[int, int]:
    """Return a thread of the agent and the number of its filters.

    Threads of the agent start each other, so all have the same filters. Ruby does not
    name a native thread that several threads share (RUBY_MN_THREADS). Then the thread
    with the most filters is used.
    """
    former = _threads.get(process.identity)
    if former is not None:
        status = _status(process, former)
        if status.get("Name") == _NAME:
            return former, filters_of(status)
    found = {tid: _status(process, tid) for tid in process.threads()}
    named = [tid for tid, status in found.items() if status.get("Name") == _NAME]
    counts = {tid: filters_of(found[tid]) for tid in named or found}
    tid = max(counts, key=lambda tid: counts[tid], default=process.pid)
    if named:
        _threads[process.identity] = tid
    return tid, counts.get(tid, 0)


def _status(process: Process, tid: int) -> Mapping[str, str]:
    """Return the status of a thread, or an empty mapping if it has ended."""
    try:
        return parse_status(process.read(f"task/{tid}/status"))
    except NoSuchTarget:
        return {}


def _read(process: Process, tid: int) -> Sequence[Filter] | None:
    if not can_read_filters():
        _note_unknown(process, "root can read it, outside containers")
        return None
    _log.warning(
        "pausing a thread of the agent in process %d for a moment to read the"
        " thread's seccomp filter",
        process.pid,
    )
    try:
        return read_filters(process, tid).filters
    except NoSuchTarget:
        raise
    except RbtraceError as error:
        _note_unknown(process, str(error))
        return None


def _note_unknown(process: Process, why: str) -> None:
    _log.warning(
        "the seccomp filter of process %d cannot be read (%s). If it kills for a"
        " system call of the agent, the process ends. %s",
        process.pid,
        why,
        DEFAULT_FILTERS,
    )
