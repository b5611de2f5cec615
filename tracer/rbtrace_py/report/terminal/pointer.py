"""Pointer at a position in a text that a user wrote."""

from __future__ import annotations

from rbtrace_py.report.style import Style
from rbtrace_py.report.text import cut, cut_left, escape, width

_INDENT = "  "


def pointed(text: str, position: int, style: Style) -> tuple[str, str]:
    """Return the text in one line, and a line with a caret under ``position``.

    If the text is wider than the terminal, only the part around the position is shown.

    Args:
        text: Text of a user.
        position: Index of a character of the text.
        style: Style of the lines.
    """
    left, right = escape(text[:position], style), escape(text[position:], style)
    room = style.width - 1 - len(_INDENT)
    # Show up to half a line after the caret, which needs a column itself.
    left = cut_left(left, room - max(min(width(right), room // 2), 1), style)
    line = left + cut(right, room - width(left), style)
    return _INDENT + line, f"{_INDENT}{' ' * width(left)}^"
