"""A separate thread for each use of ptrace.

The kernel ties a traced thread to the thread that seized it.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rbtrace_py.linux.ptrace.pause import join_kernel_thread
from rbtrace_py.linux.ptrace.scheduling import hurry

T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    """Return what ``work`` returns, or raise what it raises.

    A Ctrl-C does not interrupt ``work``.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        hurry()
        try:
            with _without_collections():
                results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="rbtrace-ptrace", daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        # After a Ctrl-C, the thread still holds the process and is about to release it.
        join_kernel_thread(thread)
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable our garbage collector, which takes longer than a stop."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
