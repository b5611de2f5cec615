"""Mappings of a process, from ``/proc/PID/maps``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.linux.process import Process
from rbtrace_py.linux.text import safe_text

DELETED = " (deleted)"

_LIMIT = 1 << 26
"""Bytes of maps read at most: vm.max_map_count's default gives about 8 MB."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line: addresses and the file offset in bytes; ``path`` as it stands.

    ``path`` keeps the kernel's ``\\012`` for a newline and its `` (deleted)``;
    ``raw_path`` undoes both for opening, but a file may really be called so.
    ``device`` is a ``dev_t``, as ``os.stat`` gives.
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
        """Is a file mapped? Files have an inode; anonymous shared memory too."""
        return self.inode != 0

    @property
    def is_deleted(self) -> bool:
        return self.path.endswith(DELETED.encode())

    @property
    def raw_path(self) -> bytes:
        """The path to try to open."""
        path = self.path.removesuffix(DELETED.encode())
        return path.replace(b"\\012", b"\n")

    @property
    def shown_path(self) -> str:
        """The path, safe to show."""
        return safe_text(self.path)

    def address_of(self, offset: int) -> int | None:
        """Return the address of the file's ``offset`` in this mapping, or None."""
        if self.offset <= offset < self.offset + (self.end - self.start):
            return self.start + (offset - self.offset)
        return None


def parse_line(line: bytes) -> Mapping | None:
    """Parse one line without its newline; None if it is no such line."""
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
    """Parse all of a maps file, passing over lines that make no sense."""
    for line in data.split(b"\n"):
        mapping = parse_line(line)
        if mapping is not None:
            yield mapping


def mappings(process: Process) -> list[Mapping]:
    """Return all mappings, by address; raises as ``Process.read`` does."""
    return list(parse(process.read("maps", _LIMIT)))


def executable_signature(process: Process) -> int:
    """Return a number that changes when executable files are mapped or unmapped.

    Much cheaper than parsing: it hashes the lines of executable mappings with
    an inode. Raises as ``Process.read`` does.
    """
    lines = process.read("maps", _LIMIT).split(b"\n")
    return hash(tuple(line for line in lines if _may_be_executable_file(line)))


def _may_be_executable_file(line: bytes) -> bool:
    space = line.find(b" ")
    return line[space + 3 : space + 4] == b"x" and b" 00:00 0 " not in line
