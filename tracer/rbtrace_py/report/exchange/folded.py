"""Folded stacks: ``root;…;leaf weight``, as flame graph tools read them."""

from __future__ import annotations

from collections.abc import Iterator

from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.report.exchange.rows import Folding, fold


def folded_lines(counts: StackCounts, folding: Folding | None = None) -> Iterator[str]:
    """Yield one line per row, sorted by text."""
    for line, weight in folded_rows(counts, folding or Folding()).items():
        yield f"{line} {weight}"


def folded_rows(counts: StackCounts, folding: Folding) -> dict[str, int]:
    """Return weights by text, sorted by text."""
    folded = fold(counts, folding)
    texts = [label.text for label in folded.labels]
    # Labels of other kinds may have the same text.
    lines: dict[str, int] = {}
    for row, weight in folded.stacks.items():
        line = ";".join(texts[number] for number in row) or "(empty)"
        lines[line] = lines.get(line, 0) + weight
    return dict(sorted(lines.items()))
