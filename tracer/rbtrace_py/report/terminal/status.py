"""The status line, fitted to a terminal's width."""

from __future__ import annotations

from rbtrace_py.report.style import Style
from rbtrace_py.report.text import cut, escape, width

_SHORTEST = 12
"""Minimum columns of the activity beside the hint about Ctrl-C."""


def status_line(what: str, seconds: float, ending: str, style: Style) -> str:
    """Return ``waiting for shop:checkout in pid 123 · 12 s, Ctrl-C stops``.

    A few columns are reserved for the ``^C`` that a terminal echoes. If the line is too
    long, the activity is cut before the time is.

    Args:
        what: The activity.
        seconds: Time since its start in seconds.
        ending: The effect of Ctrl-C.
        style: Style of the line.
    """
    what, room = escape(what, style), style.width - 1 - len("^C")
    time = f" {style.pick('·', '-')} {elapsed(seconds)}"
    hint = f", Ctrl-C {ending}"
    if room < min(width(what), _SHORTEST) + len(time) + len(hint):
        hint = ""
    return cut(what, max(room - len(time) - len(hint), 0), style) + time + hint


def elapsed(seconds: float) -> str:
    """Return ``12 s``, ``3 min 5 s``, or ``2 h 3 min``."""
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
