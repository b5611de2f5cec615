"""JSON of ``dump`` (docs/formats/dump.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread, Local, Locals
from rbtrace_py.model.stacks import Frame, SampleFlags, Stack
from rbtrace_py.model.waits import Descriptor, OtherProcess, Wait, Waiter
from rbtrace_py.report.json.serializer import Document, head


def dump_document(dumps: Sequence[Dump]) -> Document:
    """All processes in one document; frames are innermost first."""
    return {
        **head("dump"),
        "processes": [_process(dump) for dump in dumps],
    }


def _process(dump: Dump) -> Document:
    return {
        "pid": dump.pid or None,
        "core": dump.core,
        "command": dump.command,
        "ruby_version": dump.ruby_version,
        "time_ns": dump.time_ns,
        "stopped_ns": dump.stopped_ns,
        "signal": dump.signal or None,
        "failed": dump.failed,
        "notes": list(dump.notes),
        "threads": [_thread(thread) for thread in dump.threads],
        "deadlocks": [[_waiter(one) for one in waiters] for waiters in dump.deadlocks],
    }


def _thread(thread: DumpedThread) -> Document:
    return {
        "tid": thread.thread.tid,
        "name": thread.thread.name,
        "main": thread.thread.is_main,
        "ractor": thread.thread.ractor,
        "address": thread.thread.address,
        "state": thread.state.name.lower(),
        "on_cpu": thread.on_cpu,
        "kernel_state": thread.kernel_state or None,
        "fiber": thread.fiber or None,
        "waits_for": None if thread.wait is None else _wait(thread.wait),
        "gvl_waiters": thread.gvl_waiters,
        **_stack(thread.stack, thread.flags, thread.locals),
        "fibers": [_fiber(fiber) for fiber in thread.fibers],
    }


def _fiber(fiber: DumpedFiber) -> Document:
    return {
        "address": fiber.address,
        "waits_for": None if fiber.wait is None else _wait(fiber.wait),
        **_stack(fiber.stack, fiber.flags, fiber.locals),
    }


def _stack(stack: Stack | None, flags: SampleFlags, locals_: Locals) -> Document:
    frames = None
    if stack is not None:
        of_each = locals_ or (None,) * len(stack.frames)
        pairs = list(zip(stack.frames, of_each, strict=True))
        frames = [_frame(frame, found) for frame, found in reversed(pairs)]
    return {
        "trimmed": bool(flags & SampleFlags.TRIMMED),
        "truncated": bool(flags & SampleFlags.TRUNCATED),
        "frames": frames,
    }


def _frame(frame: Frame, locals_: Sequence[Local] | None) -> Document:
    found: Document = {
        "kind": frame.kind.name.lower(),
        "name": frame.name,
        "label": frame.label,
        "path": frame.path or None,
        "line": frame.line,
    }
    if locals_ is not None:
        found["locals"] = [{"name": one.name, "value": one.value} for one in locals_]
    return found


def _wait(wait: Wait) -> Document:
    """All that is known of a wait; what does not apply is null or empty."""
    return {
        "kind": wait.kind.value,
        "call": wait.call or None,
        "system_call": wait.system_call or None,
        "object": wait.object or None,
        "class": wait.class_name or None,
        "holder": None if wait.holder is None else _waiter(wait.holder),
        "free": wait.is_free,
        "length": wait.length,
        "limit": wait.limit,
        "waiting": wait.waiting,
        "seconds": wait.seconds,
        "forever": wait.is_forever,
        "descriptors": _descriptors(wait.descriptors),
        "processes": _processes(wait.processes),
        "children": _processes(wait.children),
        "any_child": wait.is_any_child,
        "path": wait.path or None,
        "lock": wait.lock or None,
        "ractor": wait.ractor,
        "native": _descriptors(wait.native),
    }


def _descriptors(descriptors: Sequence[Descriptor]) -> list[Document]:
    return [
        {
            "fd": one.number,
            "action": one.action or None,
            "target": one.target or None,
            "other_ends": list(one.other_ends),
            "other_processes": _processes(one.other_processes),
            "watched": list(one.watched),
        }
        for one in descriptors
    ]


def _processes(processes: Sequence[OtherProcess]) -> list[Document]:
    return [{"pid": one.pid, "command": one.command} for one in processes]


def _waiter(waiter: Waiter) -> Document:
    """The thread, by the keys that it has in the list of threads, and its fiber."""
    return {
        "tid": waiter.thread.tid,
        "name": waiter.thread.name,
        "address": waiter.thread.address,
        "fiber": waiter.fiber or None,
        "suspended": waiter.is_suspended,
        "ended": waiter.has_ended,
    }
