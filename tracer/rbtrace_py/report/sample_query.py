"""Options of a sample report."""

from __future__ import annotations

from dataclasses import dataclass, field

from rbtrace_py.model.stacks import Frame
from rbtrace_py.report.exchange.rows import Folding
from rbtrace_py.report.style import PLAIN, Style


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of a report. Each format ignores the options that do not apply to it.

    Attributes:
        rows: Maximum number of rows of a table.
        by_total: True if a table is sorted by total, not by self.
        waits: Frames whose self time a summary adds to the frame below.
    """

    folding: Folding = field(default_factory=Folding)
    title: str = ""
    style: Style = PLAIN
    rows: int | None = None
    by_total: bool = False
    waits: frozenset[Frame] = frozenset()
