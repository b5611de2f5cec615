"""A status line on a terminal while a process takes its time to answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from rbtrace_py.cli.common.session_start import processes_text
from rbtrace_py.cli.common.ticker import Ticker

_BETWEEN_SECONDS = 0.5
QUIET_SECONDS = 1.0

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Waiting:
    """Thread that shows a status line while the ``with`` block runs; see ``Ticker``.

    The block itself waits in a system call and cannot update the line.
    """

    def __init__(
        self, what: str, ending: str = "stops", quiet: float = QUIET_SECONDS
    ) -> None:
        self._what = what
        self._ticker = Ticker(what, ending, quiet)
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Waiting:
        self._begin = time.monotonic()
        if self._ticker.is_on:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_done.set()
        if self._thread.is_alive():
            self._thread.join()
        if exception[0] is None:
            self._ticker.clear()
        else:
            self._ticker.end()  # Including a ^C that may have been echoed.

    def what(self) -> str:
        """Return the current activity."""
        return self._what

    def before(
        self, write: Callable[[Argument], Result], *, ends: bool = False
    ) -> Callable[[Argument], Result]:
        """Return ``write``, preceded by clearing the line.

        Args:
            write: Function that prints.
            ends: True to show the line no more.
        """

        def clearing(argument: Argument) -> Result:
            with self._lock:
                if ends:
                    self._ticker.mute()
                self._ticker.clear()
                return write(argument)

        return clearing

    def _tell(self) -> None:
        while True:
            with self._lock:
                self._ticker.say(self.what(), time.monotonic() - self._begin)
            if self._is_done.wait(_BETWEEN_SECONDS):
                return


def waiting_for(pids: Sequence[int]) -> Waiting:
    """Return a status line for requests to agents of processes, which may be busy."""
    return Waiting(f"waiting for {processes_text(pids)}")
