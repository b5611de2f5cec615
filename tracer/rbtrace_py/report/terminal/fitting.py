"""The number of rows of a table: on a terminal as many as fit, elsewhere all."""

from __future__ import annotations

from rbtrace_py.report.style import Style

_FEWEST = 3
"""Minimum number of rows, even on a small terminal."""
_PROMPT = 2
"""Lines of a terminal reserved for a shell's prompt and a note."""


def rows_shown(
    count: int, limit: int | None, style: Style, others: int, tables: int = 1
) -> int:
    """Return how many of ``count`` rows are shown.

    Args:
        count: Number of rows.
        limit: Value of --rows; None for as many as fit.
        style: Style of the report.
        others: Lines of the report besides rows, without the line of ``rows_left``.
        tables: Number of tables that share the terminal.
    """
    if limit is not None or not style.height:
        return min(count, limit or count)
    room = (style.height - others - _PROMPT) // tables
    return count if count <= room else min(count, max(room - 1, _FEWEST))


def rows_left(shown: int, count: int, what: str, style: Style) -> list[str]:
    """Return the line about rows that are not shown, if any.

    Args:
        shown: Number of rows shown.
        count: Number of all rows.
        what: Name of further rows, such as ``more methods``.
        style: Style of the line.
    """
    if shown >= count:
        return []
    return [style.dim(f"  {count - shown:,} {what}; --rows {count} shows all")]
