"""Check of the memory for a copy of a process, which ``heapdump`` makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.cgroup_limits import ends_together, memory_room
from rbtrace_py.linux.process import Process, parse_status
from rbtrace_py.session.targets.confirmation import Confirm, require

Say = Callable[[str], None]
"""Receives a line about an action before it is done."""

_LEAST = 4 << 20
"""Bytes that a copy writes to before it starts the dump; measured: 2.3 MiB."""
_MIB = 1 << 20


class NoRoom(RbtraceError):
    """A copy of the process does not fit into memory, or may not fit."""


@dataclass(frozen=True, slots=True)
class CopyCost:
    """Memory that a copy of a process takes, in bytes.

    A heap of 275 MB cost 90 MB by the end of its dump, and 270 MB if the copy collected
    garbage first.

    Attributes:
        least: Memory that the fork itself takes, such as page tables. Until it is done,
            the kernel can only kill the original, not the copy.
        most: Memory if the process or the copy writes to every page.
        room: Free memory for the copy; None: unknown.
        ends_together: Without enough memory, the kernel kills the whole cgroup.
    """

    least: int
    most: int
    room: int | None
    ends_together: bool


def copy_cost(process: Process) -> CopyCost:
    """Return the cost of a copy of the process in its current state."""
    status = parse_status(process.read("status"))
    private, swapped, tables = (
        _bytes(status.get(name, "")) for name in ("RssAnon", "VmSwap", "VmPTE")
    )
    least = tables + _LEAST
    return CopyCost(
        least, private + swapped + least, memory_room(process), ends_together(process)
    )


def check_room(process: Process, collects: bool, confirm: Confirm, say: Say) -> None:
    """Report the cost of a copy, and check that its memory is available.

    Args:
        process: The process.
        collects: The copy collects garbage, which writes to all of its memory.
        confirm: Called if memory may run out and the kernel would kill only the copy.
        say: Receives a line with the cost.

    Raises:
        NoRoom: The copy does not fit, or the kernel may kill the process.
        NotConfirmed: The user did not accept the risk.
    """
    cost = copy_cost(process)
    say(
        f"a copy of process {process.pid} writes the dump; it can take up to"
        f" {_shown(cost.most)} of memory until it exits"
    )
    if cost.room is None or cost.room >= cost.most:
        return
    free = f"{_shown(cost.room)} are free for it"
    if cost.room < cost.least:
        raise NoRoom(
            f"a copy of process {process.pid} does not fit: it takes at least"
            f" {_shown(cost.least)}, and {free}",
            "Raise the limit of its cgroup (memory.max), or free memory",
        )
    if cost.ends_together:
        raise NoRoom(
            f"a copy of process {process.pid} may not fit: {free}, and the kernel"
            " would kill the process with it (memory.oom.group of its cgroup)",
            "Raise the limit of its cgroup (memory.max)",
        )
    require(
        confirm,
        f"a copy of process {process.pid} may not fit: {free}",
        "Raise the limit of its cgroup (memory.max), or use --yes: if memory"
        " runs out, the kernel kills the copy first"
        + ("; without --gc it takes less" if collects else ""),
    )


def _bytes(text: str) -> int:
    """Return the bytes of ``123 kB``; 0: the line is missing."""
    number = text.removesuffix("kB").strip()
    return int(number) * 1024 if number.isdigit() else 0


def _shown(size: int) -> str:
    return f"{-(-size // _MIB):,} MiB"
