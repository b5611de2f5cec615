"""JSON of ``dump`` (docs/formats/dump.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread, Local
from rbtrace_py.model.stacks import Frame, SampleFlags
from rbtrace_py.model.waits import Descriptor, OtherProcess, Wait, Waiter
from rbtrace_py.report.json.serializer import Document, fields, head


def dump_document(dumps: Sequence[Dump]) -> Document:
    """Return the document of all processes; the innermost frame comes first."""
    return {**head("dump"), "processes": [_process(dump) for dump in dumps]}


def _process(dump: Dump) -> Document:
    return {
        **fields(dump, "pid", "core", "command", "ruby_version", nullable=("pid",)),
        **fields(dump, "time_ns", "stopped_ns", "signal", nullable=("signal",)),
        **fields(dump, "failed", "notes"),
        "threads": [_thread(thread) for thread in dump.threads],
        "deadlocks": [[_waiter(one) for one in waiters] for waiters in dump.deadlocks],
    }


def _thread(thread: DumpedThread) -> Document:
    own = ("state", "on_cpu", "kernel_state", "fiber")
    return {
        **fields(thread.thread, "tid", "name", "is_main", "ractor", "address"),
        **fields(thread, *own, nullable=("kernel_state", "fiber")),
        "waits_for": _wait(thread.wait),
        "gvl_waiters": thread.gvl_waiters,
        **_stack(thread),
        "fibers": [_fiber(fiber) for fiber in thread.fibers],
    }


def _fiber(fiber: DumpedFiber) -> Document:
    waits_for = _wait(fiber.wait)
    return {"address": fiber.address, "waits_for": waits_for, **_stack(fiber)}


def _stack(of: DumpedThread | DumpedFiber) -> Document:
    frames = None
    if of.stack is not None:
        of_each = of.locals or (None,) * len(of.stack.frames)
        pairs = list(zip(of.stack.frames, of_each, strict=True))
        frames = [_frame(frame, found) for frame, found in reversed(pairs)]
    return {
        "trimmed": bool(of.flags & SampleFlags.TRIMMED),
        "truncated": bool(of.flags & SampleFlags.TRUNCATED),
        "frames": frames,
    }


def _frame(frame: Frame, locals_: Sequence[Local] | None) -> Document:
    found = fields(frame, "kind", "name", "label", "path", "line", nullable=("path",))
    if locals_ is not None:
        found["locals"] = [{"name": one.name, "value": one.value} for one in locals_]
    return found


def _wait(wait: Wait | None) -> Document | None:
    """Return all keys of a wait; those that do not apply are null or empty."""
    if wait is None:
        return None
    object_ = ("kind", "call", "system_call", "object", "class_name")
    return {
        **fields(wait, *object_, nullable=object_),
        "holder": None if wait.holder is None else _waiter(wait.holder),
        **fields(wait, "is_free", "length", "limit", "waiting"),
        **fields(wait, "seconds", "is_forever"),
        "descriptors": _descriptors(wait.descriptors),
        "processes": _processes(wait.processes),
        "children": _processes(wait.children),
        **fields(wait, "is_any_child", "path", "lock", nullable=("path", "lock")),
        "ractor": wait.ractor,
        "native": _descriptors(wait.native),
    }


def _descriptors(descriptors: Sequence[Descriptor]) -> list[Document]:
    texts = ("action", "target")
    return [
        {
            "fd": one.number,
            **fields(one, *texts, "other_ends", nullable=texts),
            "other_processes": _processes(one.other_processes),
            "watched": one.watched,
        }
        for one in descriptors
    ]


def _processes(processes: Sequence[OtherProcess]) -> list[Document]:
    return [fields(one, "pid", "command") for one in processes]


def _waiter(waiter: Waiter) -> Document:
    """Return a thread, with the keys that ``_thread`` gives it, and its fiber."""
    return {
        **fields(waiter.thread, "tid", "name", "address"),
        **fields(waiter, "fiber", "is_suspended", "has_ended", nullable=("fiber",)),
    }
