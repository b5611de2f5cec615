"""Rows of measurements, and their output.

A ratio never compares two averages: each round measures every variant once, one after
the other, and gives one ratio. The table shows their median, minimum, and maximum. It
also compares the best times of all rounds, which are the least disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

Rounds = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of the rounds, their extremes, and the ratio of the best times."""

    median: float
    low: float
    high: float
    best: float | None = None

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        found = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        return cls(median(found), found[0], found[-1], min(ours) / min(theirs))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Row:
    """One line. ``measured`` and ``baseline`` are strings with their units."""

    what: str
    measured: str
    baseline: str = ""
    ratio: Ratio | None = None
    goal: str = ""


def ns(value: float) -> str:
    return f"{value:,.1f} ns" if value < 100 else f"{value:,.0f} ns"


def seconds(value: float) -> str:
    return f"{value:.3f} s"


def compared(
    what: str,
    rounds: Rounds,
    names: tuple[str, str],
    goal: float | None,
    unit: Callable[[float], str] = ns,
) -> Row:
    """Compare ``names[0]`` with ``names[1]`` over the rounds of both."""
    ours, theirs = (rounds[name] for name in names)
    return Row(
        what,
        unit(median(ours)),
        f"{names[1]} {unit(median(theirs))}",
        Ratio.of(ours, theirs),
        "" if goal is None else f"≤ {goal:g}×",
    )


def interleaved(
    variants: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Run every variant once per round. Each round begins with another variant."""
    names = list(variants)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            found[name].append(variants[name]())
    return found


HEADINGS = ("what", "measured", "baseline", "ratio (low–high)", "best", "goal")


def text(title: str, rows: Sequence[Row]) -> str:
    cells = [
        (r.what, r.measured, r.baseline, str(r.ratio or ""), _best(r), r.goal)
        for r in rows
    ]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in (HEADINGS, tuple("-" * width for width in widths), *cells)
    ]
    return "\n".join([title, *(line.rstrip() for line in lines)])


def _best(row: Row) -> str:
    if row.ratio is None or row.ratio.best is None:
        return ""
    return f"{row.ratio.best:.2f}"


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]
