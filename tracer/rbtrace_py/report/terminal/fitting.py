"""How many rows of a table are shown: on a terminal as many as fit, elsewhere all."""

from __future__ import annotations

from rbtrace_py.report.style import Style

_FEWEST = 3
"""Rows that are shown however few lines a terminal has."""
_PROMPT = 2
"""Lines of a terminal that are left for a shell's prompt, and a note."""


def rows_shown(
    count: int, limit: int | None, style: Style, others: int, tables: int = 1
) -> int:
    """Return how many of ``count`` rows are shown.

    limit: that of --rows; None: as many as fit
    others: lines of the report besides rows, but for those that rows_left makes
    tables: tables that share the terminal
    """
    if limit is not None or not style.height:
        return min(count, limit or count)
    room = (style.height - others - _PROMPT) // tables
    return count if count <= room else min(count, max(room - 1, _FEWEST))


def rows_left(shown: int, count: int, what: str, style: Style) -> list[str]:
    """Return the line about rows that are not shown, if there are some.

    what: ``more methods``
    """
    if shown >= count:
        return []
    return [style.dim(f"  {count - shown:,} {what}; --rows {count} shows all")]
