"""Lines of ``doctor``, one per check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rbtrace_py.model.checks import Check
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape, pad, width, wrap

_MARKS = {"ok": ("✓", "ok"), "warn": ("!", "!"), "fail": ("✗", "X")}


def doctor_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """Yield one line per check, with advice below it."""
    names = max((width(escape(check.name, style)) for check in checks), default=0)
    for check in checks:
        yield from _check(check, names, style)


def _check(check: Check, names: int, style: Style) -> Iterator[str]:
    name = pad(escape(check.name, style), names)
    marks = style.pick("✓", "ok")
    margin = len(marks) + 1 + names + 2
    room = style.width - margin
    detail = list(wrap(escape(check.text, style), room))
    start = f"{_mark(check, style)} {name}  "
    yield (start + (detail[0] if detail else "")).rstrip()
    for line in detail[1:]:
        yield " " * margin + line
    arrow = style.pick("→", "->")
    indent = len(arrow) + 1
    for number, line in enumerate(wrap(escape(check.advice, style), room - indent)):
        lead = f"{arrow} " if not number else " " * indent
        yield " " * margin + style.bold(lead + line)


def _mark(check: Check, style: Style) -> str:
    mark = style.pick(*_MARKS[check.status])
    mark = mark.ljust(len(style.pick("✓", "ok")))
    colour = {"ok": style.green, "warn": style.yellow, "fail": style.red}
    return colour[check.status](mark)
