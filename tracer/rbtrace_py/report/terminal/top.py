"""``top``: the choice of methods, and plain lines without a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from posixpath import basename

from rbtrace_py.aggregate.top import Picture, Weights
from rbtrace_py.model.stacks import Frame, FrameKind
from rbtrace_py.report import units
from rbtrace_py.report.exchange.rows import clean
from rbtrace_py.report.paths import shown_path
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.weights import (
    NONE_ON_CPU,
    amount,
    amount_alone,
    idle_text,
)
from rbtrace_py.report.text import escape, fitted, width

PLAIN_ROWS = 10


@dataclass(frozen=True, slots=True)
class TopView:
    """The user's choices for the display.

    Attributes:
        rows: Maximum number of methods; None for as many as fit.
    """

    by_total: bool = False
    lines: bool = False
    threads: bool = True
    reverse: bool = False
    is_held: bool = False
    help: bool = False
    rows: int | None = None


def plain_lines(
    picture: Picture, view: TopView, clock: str, style: Style
) -> Iterator[str]:
    """Yield the lines of an interval: its statistics and its methods.

    Args:
        picture: Samples of the interval.
        view: Choices of the user.
        clock: Time of day to print.
        style: Style of the lines.
    """
    own = picture.statistics
    samples = amount(picture.recent, own.unit, style)
    head = f"{clock}  {on_cpu(picture, recent=True)}{samples}, {losses(picture)}"
    yield style.bold(fitted(head, style.width, style))
    shares = sorted_rows(picture, view, recent=True)[: view.rows or PLAIN_ROWS]
    everything = picture.everything(recent=True)
    yield from _plain_table(picture, shares, everything, view, style, recent=True)
    if not shares:
        yield f"  {style.dim(nothing(picture))}"


def whole_lines(picture: Picture, view: TopView, style: Style) -> Iterator[str]:
    """Yield the lines of the complete measurement, for below the last screen."""
    shares = sorted_rows(picture, view, recent=False)[: view.rows or PLAIN_ROWS]
    everything = picture.everything(recent=False)
    yield from _plain_table(picture, shares, everything, view, style, recent=False)


def _plain_table(
    picture: Picture,
    shares: Sequence[Weights],
    everything: int,
    view: TopView,
    style: Style,
    recent: bool,
) -> Iterator[str]:
    if shares:
        yield style.dim(f"self%  total%  {'line' if view.lines else 'method'}")
    for one in shares:
        own, total = (
            (one.recent_own, one.recent_total) if recent else (one.own, one.total)
        )
        numbers = f"{units.share(own, everything):>5}  "
        numbers += f"{units.share(total, everything):>6}  "
        room = style.width - 15
        name, where = frame_words(one.frame, view.lines, room, picture.folder, style)
        yield f"{numbers}{name}{style.dim(where)}".rstrip()


def on_cpu(picture: Picture, recent: bool) -> str:
    """Return the CPU use, ``12.3 % of a CPU, ``; empty in mode wall."""
    if picture.mode != "cpu":
        return ""
    weight = picture.recent if recent else picture.weight
    return f"{units.share(weight, picture.everything(recent))} % of a CPU, "


def losses(picture: Picture) -> str:
    own = picture.statistics
    rate = f"{own.achieved_rate:.0f} of {own.rate:g} passes/s"
    lost = (
        f"{units.format_count(own.late)} late, {units.format_count(own.failed)} failed"
    )
    if picture.idle:
        lost += f", {amount_alone(picture.idle, own.unit)} idle"
    return f"{rate}, {lost}" if own.rate else lost


def nothing(picture: Picture) -> str:
    if picture.mode == "cpu":
        return NONE_ON_CPU
    if picture.idle:
        return idle_text(picture.idle, picture.statistics.unit)
    return "nothing seen"


def frame_words(
    frame: Frame, lines: bool, room: int, folder: str, style: Style
) -> tuple[str, str]:
    """Return name and place in ``room`` columns; the folder is dropped first."""
    name = escape(clean(frame.name), style)
    where = "" if frame.kind is FrameKind.C and not lines else frame.path
    where = shown_path(where, folder)
    line = f":{'?' if frame.line is None else frame.line}" if lines and where else ""
    for path in (where, basename(where)) if where else ():
        text = f" {escape(clean(path), style)}{line}"
        if style.is_whole or width(name) + width(text) <= room:
            return name, text
    if line and width(name) + len(line) <= room:
        return name, line
    return fitted(name, room, style), ""


def sorted_rows(picture: Picture, view: TopView, recent: bool) -> list[Weights]:
    """Return methods, the most frequent first; those not seen recently come last."""
    found = picture.lines if view.lines else picture.methods
    key = _by_total if view.by_total else _by_self
    most_first = sorted(found, key=lambda one: key(one, recent), reverse=True)
    if recent and not picture.weight:
        return []
    return most_first[::-1] if view.reverse else most_first


def _by_self(one: Weights, recent: bool) -> tuple[int, ...]:
    order = (one.recent_own, one.recent_total, one.own, one.total)
    return order if recent else order[2:]


def _by_total(one: Weights, recent: bool) -> tuple[int, ...]:
    order = (one.recent_total, one.recent_own, one.total, one.own)
    return order if recent else order[2:]
