"""JSON of what the agent does in a process (docs/formats/inside.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.errors import RbtraceError
from rbtrace_py.model.attach import AttachResult, Detached
from rbtrace_py.model.process_state import (
    Evaluated,
    MemoryUse,
    Raised,
    ThreadBacktrace,
)
from rbtrace_py.report.json.serializer import Document, head


def attached_document(found: AttachResult) -> Document:
    """JSON of ``attach``; times in ns."""
    cost = found.cost
    return {
        **_head("attach", found.pid),
        "was_there": cost is None,
        "attempts": cost.attempts if cost else 0,
        "stopped_ns": cost.stopped_ns if cost else 0,
        "longest_ns": cost.longest_ns if cost else 0,
        "answer_ns": cost.answer_ns if cost else None,
        "ruby": found.ruby,
        "method_events": found.without_hook is None,
        "without_method_events": found.without_hook,
    }


def detached_document(found: Detached) -> Document:
    """JSON of ``detach``."""
    return {
        **_head("detach", found.pid),
        "tracer": found.tracer,
    }


def eval_document(
    pid: int, code: str, found: Evaluated | Raised | RbtraceError, out: str, err: str
) -> Document:
    """JSON of ``eval``; ``error`` is None where there is a value."""
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
    """``class`` is None for what is no exception, as where the time was over."""
    if isinstance(found, RbtraceError):
        return {"class": None, "message": str(found), "backtrace": []}
    return {
        "class": found.class_name or None,
        "message": found.message,
        "backtrace": list(found.backtrace),
    }


def backtraces_document(pid: int, threads: Sequence[ThreadBacktrace]) -> Document:
    """JSON of ``backtraces``."""
    return {
        **_head("backtraces", pid),
        "threads": [
            {
                "native_id": thread.native_id,
                "name": thread.name,
                "status": thread.status,
                "main": thread.is_main,
                "agent": thread.is_agent,
                "backtrace": list(thread.backtrace),
            }
            for thread in threads
        ],
    }


def memory_document(pid: int, found: MemoryUse) -> Document:
    """JSON of ``memory``; sizes in bytes, None where unknown."""
    return {
        **_head("memory", pid),
        "rss": found.rss,
        "pss": found.pss,
        "swap": found.swap,
        "objects": dict(found.objects),
        "gc": dict(found.gc),
    }


def fork_document(pid: int, copy: int) -> Document:
    """JSON of ``fork``."""
    return {**_head("fork", pid), "copy": copy}


def _head(command: str, pid: int) -> Document:
    return {**head(command), "pid": pid}
