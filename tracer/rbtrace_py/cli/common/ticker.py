"""The status line of a running session, on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from rbtrace_py.report.style import Style, can_move
from rbtrace_py.report.terminal.status import status_line

if TYPE_CHECKING:
    from rbtrace_py.session.targets.targets import Targets


class HasTargets(Protocol):
    """A session with targets."""

    targets: Targets


_CLEAR = "\r\x1b[2K"
"""Empties the line, including an echoed ^C."""

_SECONDS_BETWEEN = 0.5
QUIET_SECONDS = 1.0
"""Seconds without an event before a terminal shows that we wait for one."""
E = TypeVar("E")


class Ticker:
    """A status line on standard error, rewritten twice per second.

    Nothing is printed unless standard error is a terminal that can rewrite a line.

    Args:
        what: The activity that the line shows.
        ending: The effect of Ctrl-C, as the line shows it.
        quiet: Seconds before the line appears.
    """

    def __init__(
        self, what: str, ending: str = "shows the result", quiet: float = 0.0
    ) -> None:
        self._what = what
        self._ending = ending
        self._quiet = quiet
        self._shown = False
        self._last: float | None = None
        self.is_on = can_move(sys.stderr)

    def __call__(self, seconds: float) -> None:
        if not self.is_on or seconds < self._quiet:
            return
        now = time.monotonic()
        if self._last is not None and now - self._last < _SECONDS_BETWEEN:
            return
        self._last = now
        self._shown = True
        line = status_line(
            self._what, seconds, self._ending, Style.for_stream(sys.stderr)
        )
        self._write(f"{_CLEAR}{line}")

    def say(self, what: str, seconds: float) -> None:
        """Change the activity, and show the line."""
        self._what = what
        self(seconds)

    def mute(self) -> None:
        """Clear the line, and show nothing from now on."""
        self.clear()
        self.is_on = False

    def clear(self) -> None:
        if self._shown:
            self._write(_CLEAR)
            self._shown = False

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # The terminal hung up; the result may still go to a file.
            self.is_on = False

    def end(self) -> None:
        """Clear the line before the final output, including an echoed ^C."""
        self._shown = self.is_on
        self.clear()


class QuietTicker(Ticker):
    """A status line that appears when there was no event for a while.

    Args:
        what: The activity that the line shows.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what, "stops", QUIET_SECONDS)
        self._has_event = False
        self._since = 0.0

    def tick(self, seconds: float) -> None:
        """Show the line if it is due; ``seconds`` have passed since the start."""
        if self._has_event:
            self._has_event, self._since = False, seconds
        self(seconds - self._since)

    def before(self, sink: Callable[[E], int]) -> Callable[[E], int]:
        """Return a sink that clears the line before each event."""

        def cleared(event: E) -> int:
            self._has_event = True
            self.clear()
            return sink(event)

        return cleared


def ticker_for(
    session: HasTargets,
    what: str,
    ending: str = "shows the result",
    quiet: float = 0.0,
) -> Ticker:
    """Return a ticker, muted if our own COMMAND writes to the terminal itself.

    Args:
        session: Session that the line describes.
        what: The activity that the line shows.
        ending: The effect of Ctrl-C, as the line shows it.
        quiet: Seconds before the line appears.
    """
    ticker = Ticker(what, ending, quiet)
    if session.targets.command is not None:
        ticker.mute()
    return ticker
