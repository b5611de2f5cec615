"""Options of a sample report."""

from __future__ import annotations

from dataclasses import dataclass, field

from rbtrace_py.model.stacks import Frame
from rbtrace_py.report.exchange.rows import Folding
from rbtrace_py.report.style import PLAIN, Style


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Each format takes what means something to it.

    rows: of a table, at most
    by_total: a table has the largest total first, not the largest self
    waits: frames whose self time a summary adds to the frame below
    """

    folding: Folding = field(default_factory=Folding)
    title: str = ""
    style: Style = PLAIN
    rows: int | None = None
    by_total: bool = False
    waits: frozenset[Frame] = frozenset()
