"""Differences between two measurements of stacks: changes of methods and stacks.

Shares are compared, not weights, because one measurement may be longer than the other.
Methods are matched by name and base name of the file, because the folder may change
with a deployment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from posixpath import basename
from typing import NamedTuple

from rbtrace_py.aggregate.stacks import Share, StackCounts
from rbtrace_py.model.stacks import Frame
from rbtrace_py.report.exchange.rows import Folding, fold, portable_label
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.fitting import rows_left, rows_shown
from rbtrace_py.report.terminal.summary import share_text
from rbtrace_py.report.terminal.weights import amount, idle_text
from rbtrace_py.report.text import cut, ellipsis, width

MAX_ROWS = 30
"""Rows of each table if no terminal limits them."""

_TABLES = 3
_OTHERS = 2 + 2 * _TABLES
"""Lines besides rows: the title, idle samples, and two above each table."""

_LONGEST = 160
"""Maximum length of a stack in a table if no terminal limits it."""

_COLUMNS = 29
"""Columns of a row before its text."""

_UNCHANGED = 0.00005
"""Differences of shares below this are ignored: the shares print as equal."""


class Change(NamedTuple):
    """A text, and its shares (0 to 1) before and after."""

    text: str
    before: float
    after: float

    @property
    def by(self) -> float:
        return self.after - self.before


def diff_lines(
    before: StackCounts, after: StackCounts, options: ReportOptions
) -> Iterator[str]:
    """Yield tables of methods by self and by total, and of stacks.

    Args:
        before: Earlier stacks.
        after: Later stacks.
        options: Options of the report. With lines, lines replace methods.
    """
    folding, style = options.folding, options.style
    arrow = style.pick("→", "->")
    both = f" {arrow} ".join(
        amount(counts.weight, counts.statistics.unit) for counts in (before, after)
    )
    yield style.bold(f"before {arrow} after: {both}")
    idle = before.statistics.idle + after.statistics.idle
    if idle:
        yield style.dim(idle_text(idle, after.statistics.unit))
    what = "lines" if folding.lines else "methods"
    old, new = (_shares(counts, folding.lines) for counts in (before, after))
    weights = (before.weight, after.weight)
    found = changes(_own(old), _own(new), weights)
    yield from _table(f"{what}, self", found, options)
    found = changes(_totals(old), _totals(new), weights)
    yield from _table(f"{what}, total", found, options)
    found = changes(_stacks(before, folding), _stacks(after, folding), weights)
    yield from _table("stacks", found, options)


def _own(shares: dict[str, Share]) -> dict[str, int]:
    return {text: share.own for text, share in shares.items()}


def _totals(shares: dict[str, Share]) -> dict[str, int]:
    return {text: share.total for text, share in shares.items()}


def changes(
    before: Mapping[str, int], after: Mapping[str, int], weights: tuple[int, int]
) -> list[Change]:
    """Return rows whose share of their ``weights`` changed, the greatest first."""
    weight, new_weight = weights
    found = [
        Change(
            text,
            before.get(text, 0) / weight if weight else 0.0,
            after.get(text, 0) / new_weight if new_weight else 0.0,
        )
        for text in before.keys() | after.keys()
    ]
    changed = (change for change in found if abs(change.by) >= _UNCHANGED)
    return sorted(changed, key=lambda change: (-abs(change.by), change.text))


def _shares(counts: StackCounts, lines: bool) -> dict[str, Share]:
    found: dict[str, Share] = {}
    for share in counts.by_line() if lines else counts.by_method():
        text = share_text(portable(share.frame), lines)
        known = found.get(text)
        if known is not None:
            own, total = share.own + known.own, share.total + known.total
            share = Share(share.frame, own, total)  # noqa: PLW2901
        found[text] = share
    return found


def portable(frame: Frame) -> Frame:
    """Return a frame with an identity that does not depend on machine or release."""
    return Frame(frame.kind, frame.name, frame.label, basename(frame.path), frame.line)


def _stacks(counts: StackCounts, folding: Folding) -> dict[str, int]:
    """Return weights by folded text, with base names of files."""
    folded = fold(counts, folding)
    names = [portable_label(label).text for label in folded.labels]
    found: Counter[str] = Counter()
    for row, weight in folded.stacks.items():
        found[";".join(names[number] for number in row)] += weight
    return found


def _table(heading: str, found: list[Change], options: ReportOptions) -> Iterator[str]:
    style, limit = options.style, options.rows
    if limit is None and not style.height:
        limit = MAX_ROWS
    shown = rows_shown(len(found), limit, style, _OTHERS, _TABLES)
    yield ""
    yield style.dim(f"% before   % after   change  {heading}")
    for change in found[:shown]:
        yield _row(change, style)
    if not found:
        yield "  the same"
    yield from rows_left(shown, len(found), "smaller changes", style)


def _row(change: Change, style: Style) -> str:
    paint = style.red if change.by > 0 else style.green
    by = paint(f"{100 * change.by:+7.2f}")
    columns = f"{100 * change.before:8.2f}  {100 * change.after:8.2f}  {by}"
    if not style.height:
        return f"{columns}  {_innermost(change.text, _LONGEST, style)}"
    room = style.room - _COLUMNS
    return f"{columns}  {cut(_innermost(change.text, room, style), room, style)}"


def _innermost(text: str, room: int, style: Style) -> str:
    """Return the innermost frames that fit, at least one, which may be cut."""
    if width(text) <= room:
        return text
    start = text.find(";", len(text) - room + len(ellipsis(style)))
    if start < 0:
        start = text.rfind(";")
    return cut(text, room, style) if start < 0 else f"{ellipsis(style)}{text[start:]}"
