"""Cycles of threads and fibers that wait for one another."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.model.dump import DumpedThread
from rbtrace_py.model.waits import Wait, Waiter


def deadlocks(threads: Sequence[DumpedThread]) -> tuple[tuple[Waiter, ...], ...]:
    """Return the cycles of threads and fibers that wait for one another.

    Each cycle begins with the member that is first in ``threads``.
    """
    waiters: dict[int, tuple[Waiter, Waiter | None]] = {}
    for thread in threads:
        own = Waiter(thread.thread, thread.fiber)
        waiters[_key(own)] = (own, _holder(thread.wait))
        for fiber in thread.fibers:
            one = Waiter(thread.thread, fiber.address, is_suspended=True)
            waiters[_key(one)] = (one, _holder(fiber.wait))
    found: list[tuple[Waiter, ...]] = []
    seen: set[int] = set()
    for start in waiters:
        path: dict[int, Waiter] = {}
        key: int | None = start
        while key is not None and key in waiters and key not in seen | path.keys():
            waiter, holder = waiters[key]
            path[key] = waiter
            key = None if holder is None else _key(holder)
        if key in path:
            keys = list(path)
            found.append(tuple(path[one] for one in keys[keys.index(key) :]))
        seen |= path.keys()
    return tuple(found)


def _holder(wait: Wait | None) -> Waiter | None:
    """Return who must act first; None also if the wait ends by itself."""
    return None if wait is None or wait.seconds is not None else wait.holder


def _key(waiter: Waiter) -> int:
    return waiter.fiber or waiter.thread.address
