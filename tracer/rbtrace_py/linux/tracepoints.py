"""Tracepoints of the kernel, as described by tracefs.

Documentation/trace/events.rst of the kernel specifies the ``format`` files.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass

from rbtrace_py.errors import BpfError, NoSuchProbe, NotPermitted
from rbtrace_py.linux.kernel import tracefs

_FIELD = re.compile(
    r"^\tfield:(.+?)(\w+);\toffset:(\d+);\tsize:(\d+);\tsigned:([01]);$", re.M
)
_SIZES = (1, 2, 4, 8)
_ENTER = "sys_enter_"
_CALLS = "syscalls"


@dataclass(frozen=True, slots=True)
class RecordField:
    """An integer in a tracepoint's record; offset and size in bytes."""

    offset: int
    size: int
    is_signed: bool


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """A tracepoint by its number, and the integers of its record by name."""

    number: int
    fields: dict[str, RecordField]


def read_tracepoint(category: str, name: str) -> Tracepoint:
    """Read the description of a tracepoint from tracefs.

    Raises:
        NoSuchProbe: There is no such tracepoint; the hint lists similar names.
        NotPermitted: We may not read tracefs.
        BpfError: tracefs is not mounted.
    """
    folder = _events()
    _check(category, _names(folder), f"no tracepoint category {category}")
    folder = f"{folder}/{category}"
    _check(name, _names(folder), f"no tracepoint {name} in {category}")
    return _read(f"{folder}/{name}")


def read_system_call(name: str) -> Tracepoint:
    """Read the entry tracepoint of a system call; raises as ``read_tracepoint``."""
    folder = f"{_events()}/{_CALLS}"
    if not os.path.isdir(folder):
        raise BpfError(
            "this kernel has no tracepoints of system calls",
            "Use a kernel with CONFIG_FTRACE_SYSCALLS",
        )
    entries = [one for one in _names(folder) if one.startswith(_ENTER)]
    names = [one.removeprefix(_ENTER) for one in entries]
    _check(name, names, f"no system call {name}")
    return _read(f"{folder}/{_ENTER}{name}")


def _events() -> str:
    place = tracefs()
    if place is None:
        raise BpfError(
            "tracefs is not mounted, which describes tracepoints and system calls",
            "Mount it: `mount -t tracefs tracefs /sys/kernel/tracing`",
        )
    return f"{place}/events"


def _names(folder: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        raise NotPermitted(
            f"{folder}: {error.strerror}", "Run as root", root_helps=True
        ) from error


def _check(name: str, names: list[str], error: str) -> None:
    if name in names:
        return
    near = difflib.get_close_matches(name, names, 3, 0.6)
    hint = f"Did you mean {', '.join(near)}?" if near else ""
    raise NoSuchProbe(error, hint or "See `ls /sys/kernel/tracing/events`", name)


def _read(folder: str) -> Tracepoint:
    try:
        with open(f"{folder}/id") as file:
            number = int(file.read())
        with open(f"{folder}/format") as file:
            text = file.read()
    except OSError as error:
        raise NotPermitted(
            f"{folder}: {error.strerror}", "Run as root", root_helps=True
        ) from error
    return Tracepoint(number, fields_of(text))


def fields_of(text: str) -> dict[str, RecordField]:
    """Return the integer fields in a ``format``, without arrays and pointers."""
    return {
        name: RecordField(int(offset), int(size), signed == "1")
        for kind, name, offset, size, signed in _FIELD.findall(text)
        if int(size) in _SIZES and not re.search(r"[*\[]|__data_loc", kind)
        if not name.startswith("common_")
    }
