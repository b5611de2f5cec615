"""The line that says what goes on, within a terminal's width."""

from __future__ import annotations

from rbtrace_py.report.style import Style
from rbtrace_py.report.text import cut, escape, width

_SHORTEST = 12
"""Columns of what goes on that the hint about Ctrl-C must leave."""


def status_line(what: str, seconds: float, ending: str, style: Style) -> str:
    """``waiting for shop:checkout in pid 123 · 12 s, Ctrl-C stops``.

    A few columns are left for the ``^C`` that a terminal shows there. Where there
    is no room for all, what goes on is cut before the time is.
    """
    what, room = escape(what, style), style.width - 1 - len("^C")
    time = f" {style.pick('·', '-')} {elapsed(seconds)}"
    hint = f", Ctrl-C {ending}"
    if room < min(width(what), _SHORTEST) + len(time) + len(hint):
        hint = ""
    return cut(what, max(room - len(time) - len(hint), 0), style) + time + hint


def elapsed(seconds: float) -> str:
    """``12 s``, ``3 min 5 s``, ``2 h 3 min``."""
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
