"""Offsets from DWARF, for the members that the table names.

The DWARF is a target's, or is in its root. ``worker.py`` reads it in a process with
little memory and time, and the results are checked. On any failure there is no result,
and the table is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rbtrace_py.errors import BadElf
from rbtrace_py.linux import cache
from rbtrace_py.linux.elf.reader import ElfFile
from rbtrace_py.rubyvm.dwarf.files import LARGEST, DebugFile, debug_file
from rbtrace_py.rubyvm.layout import Field, Table

UNITS = (
    "vm.c", "cont.c", "symbol.c", "gc.c", "default.c", "thread.c", "parse.c", "parse.y"
)  # fmt: skip
"""Source files whose units define the members, by descending number of members.

``default.c`` contains the collector of 3.4 and later if it is compiled separately;
``thread.c`` contains mutexes and queues; the parser contains the symbols of 2.1.
"""

_MEMORY = 1 << 30
"""Memory limit of the worker in bytes, including Python and the DWARF sections."""
_SECONDS = 10
"""Limit of CPU seconds, and twice that in real time; vm.c alone takes 0.4 s."""
_LARGEST_OFFSET = 1 << 16
_KIND = "dwarf"

_Found = Mapping[str, tuple[int, int]]
"""Bit offset and size in bits (0: not a bit field) by member."""


@dataclass(frozen=True, slots=True)
class FromDwarf:
    """Fields by their names in ``Offsets``, and the file that contained them.

    ``absent`` contains the fields whose structure does not have the member.
    """

    fields: Mapping[str, Field]
    path: str
    absent: frozenset[str] = frozenset()


def fields_from_dwarf(
    elf: ElfFile, fd: int, path: bytes, roots: Iterable[bytes], table: Table
) -> FromDwarf | None:
    """Return the table's fields according to DWARF; None without DWARF.

    File contents never cause an exception.

    Args:
        elf: Reader of the binary.
        fd: Descriptor of the binary.
        path: Path of the binary in the target's root.
        roots: Roots to search for separate debug files (``/proc/PID/root``, ``b""``).
        table: The table that names the members.
    """
    try:
        with debug_file(elf, fd, path, roots) as found:
            if found is None:
                return None
            members = _look_up(found, sorted(_members(table)))
            fields = _fields(table, members)
            absent = _absent(table, members)
            return FromDwarf(fields, found.path, absent) if fields else None
    except (BadElf, OSError):
        return None


def _members(table: Table) -> set[str]:
    """Return the members to look up."""
    return {field.member for field in table.fields.values()}


def _fields(table: Table, members: _Found) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for name, known in table.fields.items():
        offset = _offset(name, known.member, members, table)
        if offset is not None and 0 <= offset < _LARGEST_OFFSET:
            fields[name] = Field(offset, known.member)
    return fields


def _absent(table: Table, members: _Found) -> frozenset[str]:
    """Return the fields whose structure was found without that member."""
    structures = {member.partition(".")[0] for member in members}
    return frozenset(
        name
        for name, field in table.fields.items()
        if field.member not in members and field.member.partition(".")[0] in structures
    )


def _offset(name: str, member: str, members: _Found, table: Table) -> int | None:
    """Return an offset in bytes; that of ``objspace_gc_bit`` is in bits from the flags.

    A bit field that does not start at a byte has no offset in bytes.
    """
    if member not in members:
        return None
    bit, _ = members[member]
    if name == "objspace_gc_bit":
        flags = table.fields.get("objspace_flags")
        if flags is None or flags.member not in members:
            return None
        return bit - members[flags.member][0]
    return bit // 8 if bit % 8 == 0 else None


def _look_up(file: DebugFile, members: list[str]) -> _Found:
    key = _key(file, members)
    known = None if key is None else _checked(cache.load(_KIND, key))
    if known is not None:
        return known
    found = _checked(_ask(file.fd, members))
    if key is not None and found:
        cache.store(_KIND, key, found)
    return found or {}


def _key(file: DebugFile, members: list[str]) -> str | None:
    contents = cache.content_hash(file.fd, LARGEST)
    if contents is None:
        return None
    words = hashlib.sha256("\n".join([*UNITS, *members]).encode())
    return f"{contents}-{words.hexdigest()[:16]}"


def _checked(answer: object) -> _Found | None:
    """Return a valid answer, with pairs of sensible numbers by member, or None."""
    if not isinstance(answer, dict):
        return None
    found: dict[str, tuple[int, int]] = {}
    for member, pair in answer.items():
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            return None
        if not all(type(n) is int and 0 <= n < 8 * _LARGEST_OFFSET for n in pair):
            return None
        found[str(member)] = (pair[0], pair[1])
    return found


def _ask(fd: int, members: list[str]) -> object:
    """Run the worker on a file; return None without an answer in time."""
    path = _pyelftools()
    if path is None or not sys.executable:
        return None
    request = {
        "fd": fd,
        "members": members,
        "units": UNITS,
        "memory": _MEMORY,
        "seconds": _SECONDS,
        "path": path,
    }
    worker = Path(__file__).with_name("worker.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(worker)],
            check=False,
            input=json.dumps(request).encode(),
            capture_output=True,
            pass_fds=[fd],
            timeout=2 * _SECONDS,
            cwd="/",
        )
        return json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _pyelftools() -> str | None:
    """Return the directory of pyelftools for the worker, which ignores PYTHONPATH."""
    spec = importlib.util.find_spec("elftools")
    if spec is None or spec.origin is None:
        return None
    return os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
