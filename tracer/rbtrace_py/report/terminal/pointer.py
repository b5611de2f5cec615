"""A place in a text that a user wrote, pointed at."""

from __future__ import annotations

from rbtrace_py.report.style import Style
from rbtrace_py.report.text import cut, cut_left, escape, width

_INDENT = "  "


def pointed(text: str, position: int, style: Style) -> tuple[str, str]:
    """The text in one line, and a line below it with a caret under ``position``.

    Of a text that is wider than the terminal there is what stands around it.
    """
    left, right = escape(text[:position], style), escape(text[position:], style)
    room = style.width - 1 - len(_INDENT)
    # As much of what follows as there is, up to half: the caret needs a column.
    left = cut_left(left, room - max(min(width(right), room // 2), 1), style)
    line = left + cut(right, room - width(left), style)
    return _INDENT + line, f"{_INDENT}{' ' * width(left)}^"
