"""``top``: the busiest methods and threads, updated continuously."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime

from rbtrace_py.aggregate.top import Picture
from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common import sampling as s
from rbtrace_py.cli.common.captured_output import CapturedOutput
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.screen import Screen
from rbtrace_py.cli.common.session_start import say_ended
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.errors import UsageError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.report.style import Style, can_move
from rbtrace_py.report.terminal.top import TopView, plain_lines, whole_lines
from rbtrace_py.report.terminal.top_screen import KEYS, screen_lines
from rbtrace_py.session.stacks.sampling import Add, Sampling
from rbtrace_py.session.stacks.top import Top
from rbtrace_py.session.targets.targets import Targets

_INTERVAL_SECONDS = 1.0
_RECENT_SECONDS = 5.0
"""Time that the screen calls recent; with longer intervals, the last interval."""


class _Options(s.SampleOptions, o.IntervalOptions):
    rows: int | None = o.rows_option(after="saved_layout")


@target_command("top", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Show the busiest methods and threads of a Ruby process, live.

    Samples as `stacks` does. Self: share of time with the method on top of the
    stack. Total: share of time with the method anywhere on the stack. 100 % is
    one CPU for the elapsed time; in other modes, the whole. Press ? for the
    keys. Without a terminal, each interval (1 s) prints a few lines.

    \b
    Examples:
      rbtrace-py top 1234
      rbtrace-py top 1234 --mode wall --no-idle   also waiting for the GVL
      rbtrace-py top --subprocesses --ps '^puma [0-9]'
      rbtrace-py top 1234 -i 5 --rows 20 | tee top.txt
      rbtrace-py top -- ruby script.rb
    """
    if words:
        raise UsageError(
            f"too many arguments: {words[0]!r}",
            "Give only options after the target",
        )
    interval = options.interval or _INTERVAL_SECONDS
    options = replace(s.settled(options), interval=interval)
    with ExitStack() as stack:
        shown = _shown(targets, options)
        stack.enter_context(shown)
        sampling = s.sample(
            stack,
            targets,
            options,
            shown.sink,
            shown.interval,
            shown.goes_on,
            shown.leave,
        )
        shown.end(sampling)
    return 0


def _shown(targets: Targets, options: _Options) -> _Lines:
    make = _Live if can_move(sys.stdout) else _Lines
    return make(targets, options)


class _Lines(Closing):
    """Display of each interval as lines, without a screen."""

    def __init__(self, targets: Targets, options: _Options) -> None:
        self._seconds = options.interval or _INTERVAL_SECONDS
        self._idle = bool(options.idle)
        self._view = TopView(rows=options.rows)
        self._picture: Picture | None = None

    def sink(self, sampling: Sampling) -> Add:
        s.warn(sampling)
        self._top = Top(sampling, self._recent_intervals(), self._idle)
        return self._top.add

    def _recent_intervals(self) -> int:
        """Return the number of recent intervals."""
        return 1

    def interval(self) -> None:
        """Show the interval that ended."""
        self._picture = self._top.end_interval()
        clock = datetime.now().strftime("%H:%M:%S")
        with opened(None) as output:
            lines = plain_lines(self._picture, self._view, clock, output.style)
            output.lines(lines)

    def goes_on(self) -> bool:
        return True

    def leave(self) -> None:
        """Stop the display."""

    def end(self, sampling: Sampling) -> None:
        """Print the final statistics."""
        if sampling.is_over:
            say_ended(sampling.targets)
        s.tell(sampling)

    def close(self) -> None:
        """Do nothing: nothing is held."""


class _Live(_Lines):
    """Screen that is redrawn at each interval and key."""

    def __init__(self, targets: Targets, options: _Options) -> None:
        super().__init__(targets, options)
        self._held = ExitStack()
        self._screen: Screen | None = None
        self._size = (0, 0)
        self._kept: CapturedOutput | None = None
        if targets.command is not None:
            self._kept = self._held.enter_context(CapturedOutput())
            targets.output = self._kept.fd

    def _recent_intervals(self) -> int:
        return max(1, round(_RECENT_SECONDS / self._seconds))

    def interval(self) -> None:
        """Draw the current state."""
        picture = self._top.end_interval()
        if self._picture is None or not self._view.is_held:
            self._picture = picture
        self._draw()

    def goes_on(self) -> bool:
        """Handle the typed keys; return False for q."""
        if self._screen is None:
            # Enter late, so that messages about attaching stay on the normal screen.
            self._screen = self._held.enter_context(Screen())
            self.interval()
        if self._kept is not None:
            self._kept.bound()
        typed = self._screen.keys()
        for key in (key for one in typed for key in KEYS if one in key.typed):
            if key.name == "quit":
                return False
            if key.name == "clear":
                self._clear()
            self._view = key.change(self._view)
        if typed or self._screen.size != self._size:
            self._draw()
        return True

    def _clear(self) -> None:
        self._top.clear()
        self._picture = self._top.end_interval()

    def _draw(self) -> None:
        if self._screen is None or self._picture is None:
            return
        columns, rows = self._size = self._screen.size
        style = Style.for_stream(sys.stdout)
        lines = screen_lines(self._picture, self._view, columns, rows, style)
        self._screen.show(lines)

    def leave(self) -> None:
        """Restore the terminal, and print the complete measurement on it."""
        picture = self._top.end_interval()
        if self._screen is not None:
            self._screen.close()
            self._screen = None
        if self._kept is not None:
            self._kept.tell()
        with opened(None) as output:
            output.lines(whole_lines(picture, self._view, output.style))

    def close(self) -> None:
        """Restore the terminal. A second call does nothing."""
        self._held.close()
