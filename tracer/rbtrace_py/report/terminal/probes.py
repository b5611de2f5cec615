"""The list of a process's probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.probes import Operand, describe_operand
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape, fitted, width

_MARGIN = 8
"""Maximum indentation of arguments."""


def probe_lines(probes: Sequence[Listed], style: Style) -> Iterator[str]:
    """Yield one line per probe, by provider and file, with its arguments wrapped below.

    With several processes, each probe shows how many of them contain it.
    """
    if not probes:
        yield "no probes"
        return
    ordered = sorted(probes, key=lambda listed: (_place(listed), listed.probe.name))
    several = len(_pids(probes)) > 1
    for number, (place, listed) in enumerate(groupby(ordered, key=_place)):
        if number:
            yield ""
        yield from _provider(*place, list(listed), several, style)
    yield ""
    yield _legend(probes, style)


def _place(listed: Listed) -> tuple[str, str]:
    probe = listed.probe
    return probe.provider, probe.binary.path


def _provider(
    provider: str, path: str, listed: Sequence[Listed], several: bool, style: Style
) -> Iterator[str]:
    name = fitted(escape(provider, style), style.width // 2, style)
    file = fitted(escape(path, style), style.width - width(name) - 2, style)
    yield f"{style.bold(name)}  {style.dim(file)}"
    for each in listed:
        yield from _probe(each, several, style)


def _pids(probes: Sequence[Listed]) -> set[int]:
    return {pid for listed in probes for pid in listed.pids}


def _probe(listed: Listed, several: bool, style: Style) -> Iterator[str]:
    probe, traced, pids = listed
    sites = units.plural(len(probe.sites), "site", "sites")
    if several:
        sites += f" in {units.plural(len(pids), 'process', 'processes')}"
    room = style.width - 4 - len(sites) - 2
    name = fitted(escape(probe.name, style), room // 2, style)
    operands = [_operand(each, room - _MARGIN - 1, style) for each in probe.operands]
    lines = _wrap(name, operands, room)
    gap = max(style.width - 4 - width(lines[0]) - len(sites), 2)
    yield f"  {_mark(traced, style)} {lines[0]}{' ' * gap}{style.dim(sites)}"
    for line in lines[1:]:
        yield f"    {line}"
    if probe.measured_method is not None:
        method = escape(probe.measured_method, style)
        yield f"    {style.dim(fitted(f'= {method}', style.width - 4, style))}"


def _operand(operand: Operand, room: int, style: Style) -> str:
    return fitted(escape(describe_operand(operand), style), room, style)


def _wrap(name: str, operands: Sequence[str], room: int) -> list[str]:
    """Return ``name(a, b)`` in lines of up to ``room`` columns, broken after commas."""
    if not operands:
        return [name]
    start = f"{name}("
    margin = " " * min(width(start), _MARGIN)
    lines, gap = [start], ""
    for word in [*(f"{each}," for each in operands[:-1]), f"{operands[-1]})"]:
        if width(lines[-1]) + len(gap) + width(word) <= room:
            lines[-1] += gap + word
        else:
            lines.append(margin + word)
        gap = " "
    return lines


def _mark(traced: bool | None, style: Style) -> str:
    if traced is None:
        return "?"
    return style.green(style.pick("●", "*")) if traced else " "


def _legend(probes: Sequence[Listed], style: Style) -> str:
    words = units.plural(len(probes), "probe")
    processes = len(_pids(probes))
    if processes > 1:
        words += f" in {units.format_count(processes)} processes"
    traced = sum(listed.traced is True for listed in probes)
    if traced:
        words += f", {units.format_count(traced)} traced now ({_mark(True, style)})"
    unknown = sum(listed.traced is None for listed in probes)
    if unknown:
        words += f", of {units.format_count(unknown)} that could not be read (?)"
    return words
