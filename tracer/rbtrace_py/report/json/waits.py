"""Waits as JSON (docs/formats/dump.md)."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.model.waits import Descriptor, OtherProcess, Wait, Waiter
from rbtrace_py.report.json.results import Document


def wait_document(wait: Wait) -> Document:
    """All that is known of a wait; what does not apply is null or empty."""
    return {
        "kind": wait.kind.value,
        "call": wait.call or None,
        "system_call": wait.system_call or None,
        "object": wait.object or None,
        "class": wait.class_name or None,
        "holder": None if wait.holder is None else waiter_document(wait.holder),
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


def deadlock_document(waiters: Sequence[Waiter]) -> list[Document]:
    return [waiter_document(one) for one in waiters]


def waiter_document(waiter: Waiter) -> Document:
    """The thread, by the keys that it has in the list of threads, and its fiber."""
    return {
        "tid": waiter.thread.tid,
        "name": waiter.thread.name,
        "address": waiter.thread.address,
        "fiber": waiter.fiber or None,
        "suspended": waiter.is_suspended,
        "ended": waiter.has_ended,
    }
