"""Mappings of a process, from ``/proc/PID/maps``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.linux.process import Process
from rbtrace_py.linux.text import safe_text

DELETED = " (deleted)"

_LIMIT = 1 << 26
"""Maximum bytes of maps: the default vm.max_map_count gives about 8 MB."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of maps; addresses and the file offset are in bytes.

    ``path`` keeps the kernel's ``\\012`` for a newline and its `` (deleted)``.
    ``raw_path`` undoes both for opening, although a file name may really contain them.
    ``device`` is a ``dev_t`` as in ``os.stat``.
    """

    start: int
    end: int
    perms: str
    offset: int
    device: int
    inode: int
    path: bytes

    @property
    def key(self) -> tuple[int, int]:
        return (self.device, self.inode)

    @property
    def is_executable(self) -> bool:
        return self.perms[2:3] == "x"

    @property
    def is_writable(self) -> bool:
        return self.perms[1:2] == "w"

    @property
    def is_file(self) -> bool:
        """True if a file is mapped. Anonymous shared memory has an inode too."""
        return self.inode != 0

    @property
    def is_deleted(self) -> bool:
        return self.path.endswith(DELETED.encode())

    @property
    def raw_path(self) -> bytes:
        """The path with which opening may succeed."""
        path = self.path.removesuffix(DELETED.encode())
        return path.replace(b"\\012", b"\n")

    @property
    def shown_path(self) -> str:
        """The path, safe to print."""
        return safe_text(self.path)

    def address_of(self, offset: int) -> int | None:
        """Return the address of the file's ``offset`` in this mapping, or None."""
        if self.offset <= offset < self.offset + (self.end - self.start):
            return self.start + (offset - self.offset)
        return None


def parse_line(line: bytes) -> Mapping | None:
    """Parse one line without its newline; return None if it is malformed."""
    fields = line.split(None, 5)
    if len(fields) < 5:
        return None
    try:
        start, end = (int(part, 16) for part in fields[0].split(b"-"))
        major, minor = (int(part, 16) for part in fields[3].split(b":"))
        return Mapping(
            start=start,
            end=end,
            perms=fields[1].decode("ascii"),
            offset=int(fields[2], 16),
            device=os.makedev(major, minor),
            inode=int(fields[4]),
            path=fields[5] if len(fields) > 5 else b"",
        )
    except (ValueError, OverflowError):
        return None


def parse(data: bytes) -> Iterator[Mapping]:
    """Parse a maps file, skipping malformed lines."""
    for line in data.split(b"\n"):
        mapping = parse_line(line)
        if mapping is not None:
            yield mapping


def mappings(process: Process) -> list[Mapping]:
    """Return all mappings, by address; raises as ``Process.read`` does."""
    return list(parse(process.read("maps", _LIMIT)))


def executable_signature(process: Process) -> int:
    """Return a number that changes when executable files are mapped or unmapped.

    It hashes the lines of executable mappings with an inode, which is much cheaper than
    parsing. Raises as ``Process.read`` does.
    """
    lines = process.read("maps", _LIMIT).split(b"\n")
    return hash(tuple(line for line in lines if _may_be_executable_file(line)))


def _may_be_executable_file(line: bytes) -> bool:
    space = line.find(b" ")
    return line[space + 3 : space + 4] == b"x" and b" 00:00 0 " not in line
