"""Processes that have the ends of pipes open, as far as we may inspect them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property

from rbtrace_py.linux.processes import all_pids
from rbtrace_py.linux.procfs import read_file

MOST_DESCRIPTORS = 1 << 16
"""Maximum number per process."""


class Pipes:
    """The pipes of all processes, read once, at the first query."""

    def users(self, pipe: str, mode: int) -> list[int]:
        """Return the pids that have ``pipe`` open in another mode, ascending.

        Args:
            pipe: ``pipe:[123]``, the target of the descriptor's link.
            mode: O_RDONLY, O_WRONLY, or O_RDWR.
        """
        ends = self._ends.get(pipe, [])
        found = {pid for pid, number in ends if _mode(pid, number) not in (mode, -1)}
        return sorted(found)

    @cached_property
    def _ends(self) -> dict[str, list[tuple[int, str]]]:
        found: dict[str, list[tuple[int, str]]] = {}
        for pid in all_pids():
            for number, link in _links(pid):
                if link.startswith("pipe:["):
                    found.setdefault(link, []).append((pid, number))
        return found


def access_mode(fdinfo: bytes) -> int:
    """Return O_RDONLY, O_WRONLY, or O_RDWR from a file of ``fdinfo``; -1: unknown."""
    lines = fdinfo.split(b"\n")
    flags = [line.split()[1] for line in lines if line.startswith(b"flags:")]
    return int(flags[0], 8) & os.O_ACCMODE if flags else -1


def _links(pid: int) -> Iterator[tuple[str, str]]:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)[:MOST_DESCRIPTORS]
    except OSError:
        return
    for number in numbers:
        try:
            yield number, os.readlink(f"{folder}/{number}")
        except OSError:
            continue


def _mode(pid: int, number: str) -> int:
    try:
        return access_mode(read_file(f"/proc/{pid}/fdinfo/{number}", 4096))
    except OSError:
        return -1
