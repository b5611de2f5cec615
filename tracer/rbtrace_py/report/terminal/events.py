"""One line per event, in our own format or in a template's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from rbtrace_py.errors import UsageError
from rbtrace_py.model.events import Event, RaiseEvent, Unreadable, Value
from rbtrace_py.model.probes import (
    DURATION_UNTRACED,
    OUTCOMES,
    Operand,
    OperandRole,
    OperandType,
    Probe,
)
from rbtrace_py.report import units
from rbtrace_py.report.paths import shown_path
from rbtrace_py.report.style import PLAIN, Style
from rbtrace_py.report.text import escape, inspect, inspect_symbol, scalar
from rbtrace_py.report.units import Unit

FIELDS = ("time", "pid", "tid", "comm", "probe", "provider", "arguments")
"""Names that a template can always use."""

_RUBYS = ("ruby", "rbtrace")
"""Providers of Ruby's own probes, and of the agent's events."""

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


def event_line(
    event: Event, style: Style, unit: Unit = "auto", with_pid: bool = False
) -> str:
    """Return ``12:34:56.789012    4711 shop:checkout id: 42, sku: "abc"``.

    Args:
        event: Event of a probe, or an exception.
        style: Style of the line.
        unit: Unit of times.
        with_pid: True to write ``4710/4711``, process and thread, instead of the
            thread.
    """
    thread = f"{event.pid}/{event.tid}".rjust(15) if with_pid else f"{event.tid:7}"
    start = f"{style.dim(clock(event.time_ns))} {thread}"
    probe = style.bold(escape(event.probe.full_name, style))
    return f"{start} {probe} {arguments(event, style, unit)}".rstrip()


def backtrace_lines(event: Event, style: Style) -> Iterator[str]:
    """Yield the backtrace of an exception, the innermost frame first."""
    if isinstance(event, RaiseEvent):
        for line in event.backtrace:
            path, colon, rest = line.partition(":")
            yield f"    {escape(shown_path(path, '') + colon + rest, style)}"


def clock(time_ns: int) -> str:
    """Return the local time of day with microseconds."""
    seconds, rest = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds):%H:%M:%S}.{rest // 1000:06d}"


def arguments(event: Event, style: Style, unit: Unit = "auto") -> str:
    """Return ``id: 42, sku: "abc"``; a file of a gem is ``puma-5.6.5 lib/puma.rb``."""
    if event.probe.provider in _RUBYS:
        event = replace(event, values=tuple(_short_paths(event)))
    return ", ".join(
        f"{escape(shown_name(operand), style)}: {text}"
        for operand, text in _texts(event, style, unit)
    )


def _short_paths(event: Event) -> Iterator[Value]:
    for operand, value in zip(event.probe.operands, event.values, strict=False):
        is_path = operand.name == "file" and isinstance(value, str)
        yield shown_path(str(value), "") if is_path else value


def value_text(
    operand: Operand,
    value: Value,
    style: Style,
    unit: Unit = "auto",
    truncated: bool = False,
) -> str:
    """Return an argument as Ruby would inspect it, and times and outcomes in words."""
    if isinstance(value, Unreadable):
        return "(unreadable)"
    if isinstance(value, str):
        is_symbol = operand.type is OperandType.SYMBOL
        return (inspect_symbol if is_symbol else inspect)(value, style, truncated)
    if type(value) is int and _is_time(operand):
        if operand.role is OperandRole.DURATION and value == DURATION_UNTRACED:
            return "untraced"
        return units.duration(value, style, unit)
    if type(value) is int and operand.role is OperandRole.OUTCOME:
        return OUTCOMES.get(value, str(value))
    return scalar(value)


class Template:
    """Template such as ``{time} {tid} {id}``: text with names in braces.

    Names are ``FIELDS`` and arguments of the probes. An argument takes precedence over
    a field of the same name. An event without the argument shows ``-``.

    Raises:
        UsageError: A name is unknown, or the braces are malformed.
    """

    def __init__(self, text: str, probes: Iterable[Probe]) -> None:
        known = {operand.name for probe in probes for operand in probe.operands}
        self._pieces = [_piece(match, known) for match in _PIECE.finditer(text)]

    def line(self, event: Event, style: Style, unit: Unit = "auto") -> str:
        """Return the template with the event's values, as ``event_line`` shows them."""
        shown = _fields(event, style, unit)
        shown.update(
            (operand.name, text) for operand, text in _texts(event, style, unit)
        )
        return "".join(
            shown.get(text, "-") if is_name else text for is_name, text in self._pieces
        )


def _piece(match: re.Match[str], known: set[str]) -> tuple[bool, str]:
    """Return whether a piece is a name, and the name or the text."""
    text, name = match[0], match[1]
    if text in ("{{", "}}"):
        return False, text[0]
    if text in ("{", "}"):
        raise UsageError(
            f"unmatched {text!r} in the template",
            f"Write {text * 2} for {text!r}, and names as {{name}}",
        )
    if name is None:
        return False, text
    if name not in known and name not in FIELDS:
        names = ", ".join(escape(each, PLAIN) for each in (*FIELDS, *sorted(known)))
        raise UsageError(
            f"unknown field in the template: {escape(name, PLAIN)!r}",
            f"Use one of {names}",
        )
    return True, name


def _fields(event: Event, style: Style, unit: Unit) -> dict[str, str]:
    return {
        "time": clock(event.time_ns),
        "pid": str(event.pid),
        "tid": str(event.tid),
        "comm": escape(event.comm, style),
        "probe": escape(event.probe.full_name, style),
        "provider": escape(event.probe.provider, style),
        "arguments": arguments(event, style, unit),
    }


def _texts(event: Event, style: Style, unit: Unit) -> Iterator[tuple[Operand, str]]:
    for place, (operand, value) in enumerate(
        zip(event.probe.operands, event.values, strict=False)
    ):
        cut = place < len(event.truncated) and event.truncated[place]
        yield operand, value_text(operand, value, style, unit, cut)


def shown_name(operand: Operand) -> str:
    """Return an argument's name. Times lose their unit, as in filters."""
    return operand.name.removesuffix("_ns") if _is_time(operand) else operand.name


def _is_time(operand: Operand) -> bool:
    is_integer = operand.type is OperandType.INTEGER
    return operand.role is OperandRole.DURATION or (
        is_integer and operand.name.endswith("_ns")
    )
