"""``top`` on a terminal: a screen of methods, and of threads below them."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from rbtrace_py.aggregate.top import Picture, ThreadNow, Weights
from rbtrace_py.model.stacks import ThreadState
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.top import (
    TopView,
    frame_words,
    losses,
    nothing,
    on_cpu,
    sorted_rows,
)
from rbtrace_py.report.terminal.weights import amount
from rbtrace_py.report.text import cut, escape, pad, pad_left, width, wrap


class Key(NamedTuple):
    """A key of the screen.

    Attributes:
        typed: Characters that the key sends.
        shown: Label of the key.
        name: Name in the last line.
        what: Description in the help.
        change: Function that changes the view.
    """

    typed: str
    shown: str
    name: str
    what: str
    change: Callable[[TopView], TopView] = lambda view: view


def _toggle(field: str) -> Callable[[TopView], TopView]:
    return lambda view: replace(view, **{field: not getattr(view, field)})


def _sort(by_total: bool) -> Callable[[TopView], TopView]:
    return lambda view: replace(view, by_total=by_total)


KEYS = (
    Key("qQ\x04", "q", "quit", "quit; so does Ctrl-C"),
    Key("?h", "?", "help", "help, or back to the report", _toggle("help")),
    Key("s", "s", "self", "sort by self: time in the method itself", _sort(False)),
    Key(
        "t", "t", "total", "sort by total: including the methods it calls", _sort(True)
    ),
    Key(
        "l", "l", "lines", "separate or combine the lines of a method", _toggle("lines")
    ),
    Key("T", "T", "threads", "show or hide threads", _toggle("threads")),
    Key(
        " ",
        "space",
        "hold",
        "freeze the display; sampling continues",
        _toggle("is_held"),
    ),
    Key("c", "c", "clear", "reset all counts"),
    Key("r", "r", "reverse", "reverse the order", _toggle("reverse")),
)

_WIDE = 60
"""Minimum number of screen columns for all columns of the tables."""
_MOST_NAME = 16
_FEWEST_ROWS = 12
"""Number of rows below which only methods are shown."""
_MUCH = 0.05
"""Maximum share of late sampling passes that is not highlighted."""


def screen_lines(
    picture: Picture, view: TopView, columns: int, rows: int, style: Style
) -> list[str]:
    """Return ``rows`` lines, none wider than ``columns``.

    Args:
        picture: Samples so far.
        view: Choices of the user.
        columns: Width of the screen.
        rows: Height of the screen.
        style: Style of the lines.
    """
    head = list(_head(picture, view, columns, style))[: max(rows - 2, 1)]
    foot = [_keys(columns)] if rows > len(head) else []
    room = rows - len(head) - len(foot)
    body = _help(columns) if view.help else _body(picture, view, columns, room, style)
    found = [*head, *body][: rows - len(foot)]
    found += [Text("")] * (rows - len(foot) - len(found))
    return _painted([*found, *foot], columns, style)


def _painted(lines: Sequence[Text], columns: int, style: Style) -> list[str]:
    """Convert lines to strings with color sequences, by Rich."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=columns,
        color_system="standard" if style.colour else None,
        force_terminal=style.colour,
        legacy_windows=False,
    )
    console.print(*lines, sep="\n", overflow="crop", no_wrap=True, highlight=False)
    return file.getvalue().split("\n")[:-1]


def _head(
    picture: Picture, view: TopView, columns: int, style: Style
) -> Iterator[Text]:
    yield Text(_who(picture, columns, style), "bold")
    held = "frozen, " if view.is_held else ""
    for line in wrap(f"{picture.mode}: {held}{_how(picture, style)}", columns):
        yield Text(cut(line, columns, style), _mood(picture))


def _who(picture: Picture, columns: int, style: Style) -> str:
    rubies = ", ".join(escape(ruby, style) for ruby in picture.rubies) or "?"
    pids = picture.pids
    where = f"pid {pids[0]}" if len(pids) == 1 else f"{len(pids)} processes"
    command = escape(picture.command, style) or "(no command line)"
    return cut(f"Ruby {rubies}, {where}: {command}", columns, style)


def _how(picture: Picture, style: Style) -> str:
    own = picture.statistics
    text = on_cpu(picture, recent=False)
    text += f"{amount(own.samples, 'samples', style)} in {units.span(own.duration_ns)}"
    return f"{text}, {losses(picture)}"


def _mood(picture: Picture) -> str:
    own = picture.statistics
    if own.failed:
        return "red"
    return "yellow" if own.late > _MUCH * (own.rounds + own.late) else ""


def _keys(columns: int) -> Text:
    text = Text()
    for key in KEYS:
        if text.cell_len + len(key.shown) + len(key.name) + 3 > columns:
            break
        text.append("  " if text else "")
        text.append(key.shown, "bold")
        text.append(f" {key.name}", "dim")
    return text


def _help(columns: int) -> list[Text]:
    words = (
        "Self: share of time with the method on top of the stack. Total: share"
        " of time with the method anywhere on the stack. In mode cpu, 100 % is"
        " one CPU for the elapsed time; in other modes, all that was seen."
    )
    keys = [Text.assemble((f"{key.shown:<7}", "bold"), key.what) for key in KEYS]
    return [Text(""), *keys, Text(""), *map(Text, wrap(words, columns))]


def _body(
    picture: Picture, view: TopView, columns: int, room: int, style: Style
) -> list[Text]:
    """Return methods, and below them threads; each gets the rows the other leaves."""
    shares = sorted_rows(picture, view, recent=True)
    if view.rows is not None:
        shares = shares[: view.rows]
    has_threads = view.threads and room >= _FEWEST_ROWS - 3
    rest = room - 2
    threads = picture.threads if has_threads else ()
    if has_threads:
        rest -= 3  # An empty line, their sum, and the heading.
        for_threads = min(len(threads), max(rest // 3, rest - max(len(shares), 1)))
        rest -= for_threads
        threads = tuple(_by_work(threads)[:for_threads])
    shown = shares[: max(rest, 0)]
    found = [*_methods(picture, shown, view, columns, style)]
    if has_threads:
        found += [
            Text(""),
            Text(cut(_sum_of_threads(picture), columns, style), "dim"),
            *_threads(picture, threads, columns, style),
        ]
    return found


def _methods(
    picture: Picture,
    shares: Sequence[Weights],
    view: TopView,
    columns: int,
    style: Style,
) -> Iterator[Text]:
    is_wide = columns >= _WIDE
    recent = f"last {picture.recent_ns / 1e9:.0f} s"
    yield Text(f"{recent:<15}since start" if is_wide else recent, "dim")
    yield _headings(view, is_wide)
    room = columns - (30 if is_wide else 15)
    for one in shares:
        yield _row(picture, one, view, is_wide, room, style)
    if not shares:
        yield Text(cut(nothing(picture), columns, style), "dim")


def _headings(view: TopView, is_wide: bool) -> Text:
    text = Text()
    for heading in ("self%", "total%") * (2 if is_wide else 1):
        is_sorted = heading.startswith("total") is view.by_total
        text.append(heading, "bold underline" if is_sorted else "dim")
        text.append("  ")
    return text.append("line" if view.lines else "method", "dim")


def _row(
    picture: Picture,
    one: Weights,
    view: TopView,
    is_wide: bool,
    room: int,
    style: Style,
) -> Text:
    text = Text()
    pairs = [(one.recent_own, one.recent_total, picture.everything(recent=True))]
    if is_wide:
        pairs.append((one.own, one.total, picture.everything(recent=False)))
    for own, total, everything in pairs:
        for part, size in ((own, len("self%")), (total, len("total%"))):
            share = units.share(part, everything)
            text.append(f"{share:>{size}}  ", "" if part else "dim")
    name, where = frame_words(one.frame, view.lines, room, picture.folder, style)
    return text.append(name).append(where, "dim")


# ----------------------------------------------------------------- threads

_STATES = {
    ThreadState.UNKNOWN: ("?", "red"),
    ThreadState.RUNNING: ("running", "green"),
    ThreadState.RUNNABLE: ("runnable", "yellow"),
    ThreadState.WAITING: ("waiting", "yellow"),
    ThreadState.SLEEPING: ("sleeping", "dim"),
}


def _by_work(threads: Sequence[ThreadNow]) -> list[ThreadNow]:
    """Sort threads by their displayed share of a CPU, or else in Ruby's order."""
    return sorted(threads, key=lambda one: (-round((one.cpu or 0) * 1000), one.state))


def _sum_of_threads(picture: Picture) -> str:
    states = Counter(one.state for one in picture.threads)
    words = [f"{states[s]} {_STATES[s][0]}" for s in _STATES if s and states[s]]
    text = units.plural(len(picture.threads), "thread")
    return f"{text}: {', '.join(words)}" if words else text


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of the thread table, with their sizes."""

    sizes: dict[str, int]

    def heading(self) -> Text:
        words = (self.padded(name, name) for name in self.sizes)
        return Text("  ".join([*words, "in"]), "dim")

    def padded(self, name: str, text: str) -> str:
        if name in ("pid", "tid", "cpu%"):
            return pad_left(text, self.sizes[name])
        return pad(text, self.sizes[name])

    @property
    def width(self) -> int:
        return sum(self.sizes.values()) + 2 * len(self.sizes)


def _threads(
    picture: Picture, threads: Sequence[ThreadNow], columns: int, style: Style
) -> Iterator[Text]:
    is_wide = columns >= _WIDE
    most = _MOST_NAME if is_wide else _MOST_NAME // 2
    names = [cut(escape(_thread_name(one), style), most, style) for one in threads]
    sizes = {"pid": 7, "tid": 7, "state": 8, "cpu%": 5}
    sizes["name"] = max([4, *map(width, names)])
    if len(picture.pids) == 1 or not is_wide:
        del sizes["pid"]
    if not is_wide:
        del sizes["tid"]
    own = _Columns(sizes)
    yield own.heading()
    for one, name in zip(threads, names, strict=True):
        text = Text()
        for heading, cell, colour in _cells(one, name, style):
            if heading in sizes:
                text.append(f"{own.padded(heading, cell)}  ", colour)
        room = max(columns - own.width, 1)
        inside, where = _inside(one, room, picture.folder, style)
        yield text.append(inside).append(where, "dim")


def _cells(one: ThreadNow, name: str, style: Style) -> Iterator[tuple[str, str, str]]:
    """Yield column, text, and color."""
    state, colour = _STATES[one.state]
    cpu = style.pick("–", "-")
    if one.cpu is not None:
        cpu = units.share(round(one.cpu * 1000), 1000)
    yield "pid", str(one.thread.pid), ""
    yield "tid", "?" if one.thread.tid is None else str(one.thread.tid), ""
    yield "state", state, colour
    yield "cpu%", cpu, ""
    yield "name", name, ""


def _inside(one: ThreadNow, room: int, folder: str, style: Style) -> tuple[str, str]:
    if one.frame is None:
        return "", cut("(not read)", room, style)
    return frame_words(one.frame, True, room, folder, style)


def _thread_name(one: ThreadNow) -> str:
    return one.thread.name or ("main" if one.thread.is_main else "")
