"""Slow spans: their number, where their time went, and the slowest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rbtrace_py.aggregate.results import Result
from rbtrace_py.aggregate.slow.spans import EndedSpan, Exemplar, SlowPart
from rbtrace_py.model.probes import OperandRole
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.events import clock, shown_name, value_text
from rbtrace_py.report.terminal.histogram import Notation, mark
from rbtrace_py.report.terminal.tables import Column, table
from rbtrace_py.report.text import escape, lines_of, listed, width

_MARGIN = "  "


def slow_lines(
    result: Result, slow: SlowPart, notation: Notation, style: Style
) -> Iterator[str]:
    """Yield the lines below a histogram whose slow part is marked."""
    total = sum(group.total for group in result.groups)
    least = notation.value(slow.least_ns)
    count = units.format_count(slow.count)
    share = units.share(slow.count, result.count)
    line = f"{mark(style)} {style.bold('slow')} from {least}: {count} ({share} %)"
    if slow.count:
        spent = units.share(slow.total_ns, total)
        line += f", {notation.value(slow.total_ns)} in total ({spent} %)"
    yield line
    if not slow.count:
        yield ""
        return
    parts = (
        f"{part} {units.share(ns, slow.total_ns)} %" for part, ns in slow.parts.items()
    )
    for line in listed(parts, style.room - len(_MARGIN), style):
        yield _MARGIN + line
    yield ""
    if slow.exemplars:
        yield from _table(slow, notation, style)
        yield ""


def _table(slow: SlowPart, notation: Notation, style: Style) -> Iterator[str]:
    def part(name: str) -> Column[Exemplar]:
        return Column(
            name,
            lambda one: notation.value(one.parts[name]) if name in one.parts else "-",
        )

    names = {name for one in slow.exemplars for name in one.parts}
    columns: list[Column[Exemplar]] = [
        Column("duration", lambda one: notation.value(one.span.duration_ns)),
        *(part(name) for name in slow.parts if name in names),
    ]
    has_several = len({one.span.series for one in slow.exemplars}) > 1
    below: dict[str, str] = {}

    def label(one: Exemplar) -> str:
        name = _name(one.span, has_several, style)
        arguments = _arguments(one.span, style)
        text = f"{name} {arguments}".rstrip()
        rest = lines_of(arguments, style.room - 2 * len(_MARGIN))
        below[text] = "\n".join([name, *(_MARGIN + line for line in rest)])
        return text

    yield from table(
        slow.exemplars,
        "the slowest" if len(slow.exemplars) > 1 else "the slowest one",
        label,
        columns,
        replace(style, width=style.room, spare=0),
        lambda text, room, _: text if width(text) <= room else below[text],
    )


def _name(span: EndedSpan, has_several: bool, style: Style) -> str:
    """Return ``11:47:18.131 web:request``; a name that all spans share is omitted."""
    began = clock(span.began_ns)[:-3]
    return f"{began} {escape(span.series, style)}" if has_several else began


def _arguments(span: EndedSpan, style: Style) -> str:
    """Return ``id: 42, sku: "tea"``."""
    return ", ".join(
        f"{escape(argument, style)}: {text}"
        for argument, text in argument_texts(span, style)
    )


def argument_texts(span: EndedSpan, style: Style) -> Iterator[tuple[str, str]]:
    """Yield names and values of arguments, and the outcome if it is not 0."""
    event = span.event
    operands = zip(event.probe.operands, event.values, event.truncated, strict=False)
    yield from (
        (shown_name(operand), value_text(operand, value, style, truncated=cut))
        for operand, value, cut in operands
        if operand.role is not OperandRole.DURATION
        and not (operand.role is OperandRole.OUTCOME and value == 0)
    )
