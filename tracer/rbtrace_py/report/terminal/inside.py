"""Lines of values, backtraces, and memory of a process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rbtrace_py.model.process_state import (
    Evaluated,
    MemoryUse,
    Raised,
    Scalar,
    ThreadBacktrace,
)
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import cut, escape, fitted, pad, pad_left
from rbtrace_py.report.units import format_count, share

_SPECIAL = re.compile(r"[^\\\n\t]?[^\x20-\x7e\n\t]+")
_MARGIN = "  "
_MOST_CALLERS = 20
"""Lines shown of a long backtrace at its beginning and at its end."""


def shown(text: str, style: Style) -> str:
    """Return text of a process with terminal control characters escaped."""
    return _SPECIAL.sub(lambda found: escape(found[0], style), text)


def value_lines(
    found: Evaluated, style: Style, has_arrow: bool = True
) -> Iterator[str]:
    """Yield ``=> 42``, or without an arrow the value alone."""
    arrow = f"{style.dim('=>')} " if has_arrow else ""
    yield f"{arrow}{shown(found.value, style)}"


def raised_lines(found: Raised, style: Style) -> Iterator[str]:
    """Return an exception as Ruby prints it: place, message, class, callers."""
    place, callers = found.backtrace[:1], found.backtrace[1:]
    first, *others = found.message.split("\n")
    class_name = f" ({shown(found.class_name, style)})" if found.class_name else ""
    what = style.red(f"{shown(first, style)}{class_name}")
    yield ": ".join([*(shown(line, style) for line in place), what])
    yield from (shown(line, style) for line in others)
    yield from (f"{_MARGIN}{line}" for line in _shortened(callers, style))


def _shortened(callers: Sequence[str], style: Style) -> Iterator[str]:
    """Yield both ends of a long backtrace, as of endless recursion."""
    left_out = len(callers) - 2 * _MOST_CALLERS
    for number, line in enumerate(callers):
        if left_out <= 1 or not _MOST_CALLERS <= number < _MOST_CALLERS + left_out:
            yield f"from {shown(line, style)}"
        elif number == _MOST_CALLERS:
            yield f"… {format_count(left_out)} more …"


def backtrace_lines(
    pid: int, threads: Sequence[ThreadBacktrace], style: Style
) -> Iterator[str]:
    """Yield a heading, and a paragraph for each thread, the innermost call first."""
    count = len(threads)
    yield style.bold(f"process {pid}, {count} thread{'' if count == 1 else 's'}")
    for thread in threads:
        yield ""
        yield style.bold(fitted(_heading(thread, style), style.width, style))
        lines = thread.backtrace or ("(no Ruby code)",)
        yield from (f"{_MARGIN}{shown(line, style)}" for line in lines)


def _heading(thread: ThreadBacktrace, style: Style) -> str:
    """Return ``thread 1234 "worker", sleep``."""
    words = ["thread"]
    if thread.native_id is not None:
        words.append(str(thread.native_id))
    if thread.name is not None:
        words.append(f'"{escape(thread.name, style)}"')
    marks = [thread.status or "ended"]
    if thread.is_main:
        marks.insert(0, "main")
    return f"{' '.join(words)}, {', '.join(escape(mark, style) for mark in marks)}"


def memory_lines(pid: int, found: MemoryUse, style: Style) -> Iterator[str]:
    """Yield the kernel's sizes and, if known, the objects and ``GC.stat``."""
    sizes = {"resident": found.rss, "proportional": found.pss, "swapped": found.swap}
    yield from _table(f"process {pid}", _sizes(sizes), style)
    if not found.gc:
        return
    yield ""
    yield from _table("objects", _objects(found.objects), style)
    yield ""
    stat = [(name, _cell(value), "") for name, value in found.gc.items()]
    yield from _table("GC.stat", stat, style)


Row = tuple[str, str, str]


def _sizes(sizes: Mapping[str, int | None]) -> list[Row]:
    return [
        (name, format_count(size), f"{size / (1 << 20):.1f} MiB")
        for name, size in sizes.items()
        if size is not None
    ]


def _objects(objects: Mapping[str, Scalar]) -> list[Row]:
    """Return rows, the most frequent type first. TOTAL includes free slots."""
    numbers = {name: n for name, n in objects.items() if isinstance(n, int)}
    total = numbers.pop("TOTAL", 0)
    rows = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    table = [
        (name, format_count(n), f"{share(n, total)} %") for name, n in rows if total
    ]
    return [*table, ("TOTAL", format_count(total), "")]


def _cell(value: Scalar) -> str:
    return format_count(value) if type(value) is int else str(value)


def _table(heading: str, rows: Sequence[Row], style: Style) -> Iterator[str]:
    yield style.bold(heading)
    safe = [[escape(cell, style) for cell in row] for row in rows]
    names, numbers, rests = (
        max((len(row[column]) for row in safe), default=0) for column in range(3)
    )
    for name, number, rest in safe:
        line = f"{_MARGIN}{pad(name, names)}  {pad_left(number, numbers)}"
        line += f"  {pad_left(rest, rests)}"
        yield cut(line.rstrip(), style.width, style)


def fork_lines(pid: int, copy: int) -> Iterator[str]:
    """Yield lines about uses of a process copy, and how to remove it."""
    yield f"rbtrace-py: process {copy} is a copy of {pid}, and stopped"
    yield f"{_MARGIN}look at it  gdb -p {copy}, or gcore {copy}"
    yield f"{_MARGIN}end it      kill -KILL {copy}"
