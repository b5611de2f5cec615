"""Commands of the agent inside a process: code, backtraces, memory, and the heap."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rbtrace_py.agent.client import Agent, AgentError
from rbtrace_py.agent.filter_check import check_filters
from rbtrace_py.agent.protocol import BrokenAgent, Channel, MalformedAnswer, Map, Value
from rbtrace_py.agent.refusal import DEFAULT_FILTERS
from rbtrace_py.errors import NoSuchTarget, NotPermitted, RbtraceError
from rbtrace_py.linux.process import Process, inner_id, parse_status
from rbtrace_py.linux.processes import children
from rbtrace_py.linux.procfs import read_file
from rbtrace_py.model.process_state import (
    Evaluated,
    MemoryUse,
    Raised,
    Scalar,
    ThreadBacktrace,
)
from rbtrace_py.session.targets.confirmation import Confirm, accept_none, require
from rbtrace_py.session.targets.notes import skipped
from rbtrace_py.session.targets.targets import Targets

Write = Callable[[bytes], None]
T = TypeVar("T")

EVAL_SECONDS = 5.0
DUMP_SECONDS = 600.0
MOST_SECONDS = 3600.0
_FORK_SECONDS = 10
_MOST_COLLECTED = 64 << 20
_POLL_SECONDS = 0.01
_GRACE = 10
"""Additional seconds in which the agent can report that a time limit passed."""


class CollectedOutput:
    """Collects the output of code as part of its result.

    Call it with bytes; it raises RbtraceError with ``hint`` above 64 MiB.
    """

    def __init__(self, hint: str = "") -> None:
        self._data = bytearray()
        self._hint = hint

    def __call__(self, data: bytes) -> None:
        if len(self._data) + len(data) > _MOST_COLLECTED:
            text = f"the code printed more than {_MOST_COLLECTED} bytes"
            raise RbtraceError(text, self._hint)
        self._data += data

    @property
    def text(self) -> str:
        return self._data.decode("utf-8", "surrogateescape")


def processes(targets: Targets) -> list[Process]:
    """Return the targets that are alive; raise NoSuchTarget if all have ended."""
    found = targets.alive()
    if not found:
        raise NoSuchTarget("the process has ended")
    return found


def ask_each(
    targets: Targets,
    found: Iterable[Process],
    ask: Callable[[Process], T],
    say: Callable[[str], None],
) -> list[tuple[Process, T]]:
    """Query several processes.

    Args:
        targets: The targets.
        found: The processes to query.
        ask: Queries one process.
        say: Receives the reason for each skipped child.

    Returns:
        Processes with their answers.

    Raises:
        RbtraceError: The query of a process other than a child fails.
    """
    answers = []
    for process in found:
        try:
            answers.append((process, ask(process)))
        except RbtraceError as error:
            if not targets.has_joined(process):
                raise
            say(skipped(process.pid, error))
    return answers


def evaluate(
    process: Process,
    code: str,
    out: Write,
    err: Write,
    file: str | None = None,
    seconds: float = EVAL_SECONDS,
) -> Evaluated | Raised:
    """Run code in a process.

    Args:
        process: The process.
        code: The Ruby code.
        out: Receives output at once.
        err: Receives error output at once.
        file: File name for ``__FILE__`` and backtraces.
        seconds: Time limit.

    Returns:
        The value, or the exception that the code raised.

    Raises:
        RbtraceError: As ``Agent`` raises; AgentError after the time limit.
    """
    with Agent(process) as agent, _limited(process, seconds):
        return evaluate_through(agent, code, out, err, seconds, file=file)


def evaluate_through(
    agent: Agent, code: str, out: Write, err: Write, seconds: float, **arguments: Value
) -> Evaluated | Raised:
    """Run code like ``evaluate``, over an existing connection.

    Args:
        agent: The connection.
        code: The Ruby code.
        out: Receives output at once.
        err: Receives error output at once.
        seconds: Time limit.
        **arguments: Further arguments of the request.
    """
    request: Map = {"code": code, "limit_ms": _milliseconds(seconds)}
    request.update(
        (name, value) for name, value in arguments.items() if value is not None
    )
    sinks = {Channel.STDOUT: out, Channel.STDERR: err}
    try:
        reply = agent.call("eval", request, seconds + _GRACE, sinks)
    except AgentError as error:
        if error.code != "raised":
            raise
        return _raised(error.reply)
    return Evaluated(
        _field(reply, "value", str),
        _field(reply, "class", str, "BasicObject"),
        _field(reply, "ns", int),
    )


def backtraces(process: Process) -> list[ThreadBacktrace]:
    """Return the Ruby backtraces of all threads, including the agent's own."""
    with Agent(process) as agent:
        reply = agent.call("backtraces")
    return list(map(_thread, _list(reply, "threads", dict)))


def memory(process: Process) -> MemoryUse:
    """Return the process's memory use, by kind."""
    with Agent(process) as agent:
        reply = agent.call("memory")
    sizes = {name: _field(reply, name, int, -1) for name in ("rss", "pss", "swap")}
    return MemoryUse(
        gc=dict(_scalars(_field(reply, "gc", dict))),
        objects=dict(_scalars(_field(reply, "objects", dict))),
        **{name: None if size < 0 else size for name, size in sizes.items()},
    )


_SIZES = re.compile(rb"^(?:Vm)?(Rss|RSS|Pss|Swap):\s+(\d+) kB$", re.MULTILINE)


def memory_by_kernel(process: Process) -> MemoryUse:
    """Return the kernel's data only, which needs no agent.

    Source: /proc/PID/smaps_rollup; without permission, /proc/PID/status.
    """
    try:
        text = process.read("smaps_rollup")
    except NotPermitted:
        text = process.read("status")
    sizes = {name.lower(): int(size) * 1024 for name, size in _SIZES.findall(text)}
    return MemoryUse({}, {}, sizes.get(b"rss"), sizes.get(b"pss"), sizes.get(b"swap"))


def heapdump(
    process: Process,
    write: Write,
    collect: bool = False,
    seconds: float = DUMP_SECONDS,
    before: Callable[[], None] = lambda: None,
    confirm: Confirm = accept_none,
) -> int:
    """Write ``ObjectSpace.dump_all`` of a copy of the process.

    Args:
        process: The process.
        write: Receives the dump in parts.
        collect: The copy collects garbage first.
        seconds: Time limit.
        before: Called once the agent has answered; it may raise.
        confirm: Called if the process has a seccomp filter that cannot be read.

    Returns:
        The number of bytes.

    Raises:
        NotConfirmed: The user did not accept the filter.
        RbtraceError: As ``Agent`` raises.
    """
    return _dump(process, "heapdump", write, collect, seconds, before, confirm)


def shapesdump(
    process: Process,
    write: Write,
    seconds: float = DUMP_SECONDS,
    before: Callable[[], None] = lambda: None,
    confirm: Confirm = accept_none,
) -> int:
    """Like ``heapdump`` for ``ObjectSpace.dump_shapes``, since Ruby 3.3."""
    return _dump(process, "shapesdump", write, False, seconds, before, confirm)


def _dump(
    process: Process,
    command: str,
    write: Write,
    collect: bool,
    seconds: float,
    before: Callable[[], None],
    confirm: Confirm,
) -> int:
    received = 0

    def take(data: bytes) -> None:
        nonlocal received
        received += len(data)
        write(data)

    arguments: Map = {"gc": collect, "limit_ms": _milliseconds(seconds)}
    with Agent(process) as agent:
        _check_filters(process, command, confirm)
        before()
        sinks = {Channel.FILE: take}
        with _limited(process, seconds):
            reply = agent.call(command, arguments, seconds + _GRACE, sinks)
    if _field(reply, "bytes", int) != received:
        raise MalformedAnswer("the dump is incomplete")
    return received


def fork(process: Process, confirm: Confirm = accept_none) -> int:
    """Make a copy of the process; the copy is stopped.

    Args:
        process: The process.
        confirm: Called if the process has a seccomp filter that cannot be read.

    Returns:
        The copy's PID in our namespace.
    """
    with Agent(process) as agent:
        _check_filters(process, "fork", confirm)
        inner = _field(agent.call("fork"), "pid", int)
    deadline = time.monotonic() + _FORK_SECONDS
    while time.monotonic() < deadline:
        for pid in children(process.pid):
            if _is_stopped(pid, inner):
                return pid
        time.sleep(_POLL_SECONDS)
    raise BrokenAgent(f"the copy {inner} of process {process.pid} is missing")


def _check_filters(process: Process, command: str, confirm: Confirm) -> None:
    """Raise NotConfirmed if a filter may kill the process for ``command``."""
    if not check_filters(process, command):
        require_unread_filter(process, confirm)


def require_unread_filter(process: Process, confirm: Confirm) -> None:
    """Raise NotConfirmed unless the user accepts a filter that cannot be read."""
    require(
        confirm,
        f"process {process.pid} has a seccomp filter that cannot be read and may kill"
        " the process for the agent's system calls",
        "Run as root outside containers, where the filter can be read; or use --yes if"
        f" the filter does not kill. {DEFAULT_FILTERS}",
    )


def _is_stopped(pid: int, inner: int) -> bool:
    """Return whether a process has PID ``inner`` in its namespace and is stopped."""
    try:
        status = parse_status(read_file(f"/proc/{pid}/status"))
    except OSError:
        return False
    return inner_id(status, pid) == inner and status.get("State", "").startswith("T")


@contextmanager
def _limited(process: Process, seconds: float) -> Iterator[None]:
    """Name the time limit and its option in the agent's error."""
    try:
        yield
    except AgentError as error:
        if error.code != "time":
            raise
        message = f"the time limit of {seconds:g} s passed"
        named = AgentError(process.pid, {**error.reply, "message": message})
        named.hint = "Set another limit with --timeout"
        raise named from error


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _raised(reply: Map) -> Raised:
    return Raised(
        _field(reply, "class", str, ""),
        _field(reply, "message", str),
        tuple(_list(reply, "backtrace", str)),
    )


def _thread(found: Map) -> ThreadBacktrace:
    number = _field(found, "native_id", int, -1)
    return ThreadBacktrace(
        native_id=None if number < 0 else number,
        name=_field(found, "name", str, "") or None,
        status=_field(found, "status", str, "") or None,
        is_main=_field(found, "main", bool),
        is_agent=_field(found, "agent", bool),
        backtrace=tuple(_list(found, "backtrace", str)),
    )


def _field(reply: Map, name: str, kind: type[T], default: T | None = None) -> T:
    """Read a field that must be a ``kind``, or may be nil if there is a default."""
    found = _decoded(reply.get(name), kind)
    if found is None and default is not None:
        return default
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise MalformedAnswer(f"malformed {name}")
    return found


def _decoded(value: Value, kind: type[T]) -> Any:
    """Convert bytes to a string: the program's string has Ruby's binary encoding."""
    if kind is str and isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value


def _list(reply: Map, name: str, kind: type[T]) -> list[T]:
    found = [_decoded(item, kind) for item in _field(reply, name, list)]
    if not all(isinstance(item, kind) for item in found):
        raise MalformedAnswer(f"malformed {name}")
    return found


def _scalars(found: Map) -> Iterator[tuple[str, Scalar]]:
    """Yield numbers and strings; later Rubies may have nested maps."""
    for name, value in found.items():
        if value is None or isinstance(value, (bool, int, float, str)):
            yield name, value
