"""Weights of samples, and what a sampler says of its work, in words."""

from __future__ import annotations

from collections.abc import Iterator

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.report import units
from rbtrace_py.report.style import PLAIN, Style


def amount(weight: int, unit: str, style: Style = PLAIN) -> str:
    """``1,234 samples``, or a time."""
    if unit == "ns":
        return units.duration(weight, style)
    return f"{units.whole(weight)} {'sample' if weight == 1 else 'samples'}"


def percent(part: float, whole: float) -> str:
    """``12.34``: as a column of summaries has it."""
    return f"{100 * part / whole:.2f}" if whole else "0.00"


def statistics_lines(own: Statistics, style: Style = PLAIN) -> Iterator[str]:
    """How much was sampled and how well; the last line says what was lost."""
    yield f"  {_head(own)}"
    for number, words in (
        (
            own.trimmed,
            "lack their innermost frames, which changed while they were read",
        ),
        (
            own.truncated,
            "are deeper than what is read, and lack their outermost frames",
        ),
    ):
        if number:
            yield f"  {style.dim(f'{units.whole(number)} {words}')}"
    if own.other:
        text = f"{amount(own.other, own.unit, style)} of rare stacks are in (other)"
        yield f"  {style.dim(text)}"
    if own.late:
        part = units.share(own.late, max(own.rounds, own.late))
        text = f"{units.whole(own.late)} rounds were late ({part} %)"
        yield f"  {style.yellow(text)}"
    if own.failed:
        tried = own.samples + own.failed
        part = units.share(own.failed, tried)
        text = f"{units.whole(own.failed)} stacks could not be read ({part} %)"
        yield f"  {style.red(text)}"
    else:
        yield f"  {style.dim('nothing was lost')}"


def _head(own: Statistics) -> str:
    text = amount(own.samples, "samples")
    if own.duration_ns:
        text += f" in {units.span(own.duration_ns)}"
    if own.achieved_rate and own.rate:
        text += f", {own.achieved_rate:.1f} of {own.rate:g} rounds a second"
    return text
