"""JSON of commands that act in a process (docs/formats/inside.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.errors import RbtraceError
from rbtrace_py.model.attach import AttachResult, Cost, Detached
from rbtrace_py.model.process_state import (
    Evaluated,
    MemoryUse,
    Raised,
    ThreadBacktrace,
)
from rbtrace_py.report.json.serializer import Document, fields, head

_NO_COST = Cost(attempts=0, stopped_ns=0, longest_ns=0, answer_ns=0)


def attached_document(found: AttachResult) -> Document:
    """Return the document of ``attach``."""
    cost = found.cost
    return {
        **_head("attach", found.pid),
        "was_there": cost is None,
        **fields(cost or _NO_COST, "attempts", "stopped_ns", "longest_ns"),
        "answer_ns": cost and cost.answer_ns,
        "ruby": found.ruby,
        "method_events": found.without_hook is None,
        "without_method_events": found.without_hook,
    }


def detached_document(found: Detached) -> Document:
    """Return the document of ``detach``."""
    return {**_head("detach", found.pid), "tracer": found.tracer}


def eval_document(
    pid: int, code: str, found: Evaluated | Raised | RbtraceError, out: str, err: str
) -> Document:
    """Return the document of ``eval``, with either a value or an error.

    Args:
        pid: Process that ran the code.
        code: Ruby code.
        found: Value, exception, or error of the tracer.
        out: Standard output of the code.
        err: Standard error of the code.
    """
    value = found if isinstance(found, Evaluated) else None
    return {
        **_head("eval", pid),
        "code": code,
        "value": value and value.value,
        "class": value and value.class_name,
        "time_ns": value and value.time_ns,
        "error": None if isinstance(found, Evaluated) else _error(found),
        "stdout": out,
        "stderr": err,
    }


def _error(found: Raised | RbtraceError) -> Document:
    """Return an error; the tracer's own, such as a timeout, have no class."""
    if isinstance(found, RbtraceError):
        return {"class": None, "message": str(found), "backtrace": []}
    names = ("class_name", "message", "backtrace")
    return fields(found, *names, nullable=("class_name",))


def backtraces_document(pid: int, threads: Sequence[ThreadBacktrace]) -> Document:
    """Return the document of ``backtraces``."""
    return {
        **_head("backtraces", pid),
        "threads": [
            {
                **fields(thread, "native_id", "name", "status"),
                **fields(thread, "is_main", "is_agent", "backtrace"),
            }
            for thread in threads
        ],
    }


def memory_document(pid: int, found: MemoryUse) -> Document:
    """Return the document of ``memory``; sizes are in bytes, or None if unknown."""
    return _head("memory", pid) | fields(found, "rss", "pss", "swap", "objects", "gc")


def fork_document(pid: int, copy: int) -> Document:
    """Return the document of ``fork``."""
    return {**_head("fork", pid), "copy": copy}


def _head(command: str, pid: int) -> Document:
    return {**head(command), "pid": pid}
