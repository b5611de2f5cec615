"""The agent's socket of a process: where it is, and whether it is the process's own.

docs/agent.md, "The socket's place" and "Who may do what".
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice

from rbtrace_py.errors import BadElf, NoSuchTarget, RbtraceError
from rbtrace_py.linux.binaries import MappedFile, mapped_files, open_mapped
from rbtrace_py.linux.elf import Budget, ElfFile
from rbtrace_py.linux.inroot import open_directory_in_root
from rbtrace_py.linux.process import Process, gone, parse_status
from rbtrace_py.linux.ruby_probes import is_ruby_binary
from rbtrace_py.linux.text import safe_text

_BASES = ("/tmp", "/dev/shm")
_VARIABLE = b"TRACEPOINT_AGENT_DIR="
_CREDENTIALS = struct.Struct("3i")
_MOST_NAMES = 4096
_TIMEOUT = struct.Struct("ll")
_NOBODY = 65_534
_ALL_USERS = (1 << 32) - 1
_MARK = b"\0ruby_version\0"
_MAX_STRINGS = 64 << 20
CONNECT_SECONDS = 5
HOW_TO_LOAD = (
    'load it in the program (require "tracepoint/agent", of the gem tracepoint-usdt),'
    " or start it with RUBYOPT=-rtracepoint/agent"
)
ENDED_BEFORE = "the program ended before its agent was there and could be asked"
"""Of one that we started."""


class NoAgent(NoSuchTarget):
    """No agent in the process, or none that may be talked to."""


def connect(process: Process) -> socket.socket:
    """A connection to the agent in ``process``, which the kernel says is its.

    Raises NoAgent, NoSuchTarget if the process is gone, NotPermitted.
    """
    reasons: list[str] = []
    for directory in _directories(process):
        for connection in _connections(process, directory, reasons):
            if process.alive():
                return connection
            connection.close()
            raise gone(process.pid)
    if process.is_ending():
        raise gone(process.pid)
    stranger = None if reasons else runs_no_ruby(process)
    if stranger is not None:
        raise stranger
    why = f": {reasons[0]}" if reasons else ""
    raise NoAgent(
        f"there is no agent in process {process.pid}{why}",
        f"{HOW_TO_LOAD}; or put it in: rbtrace-py attach {process.pid}",
    )


def runs_no_ruby(process: Process) -> NoSuchTarget | None:
    """The error for a process that cannot have an agent; None if it may have one."""
    try:
        may_have = _may_be_ruby(process.identity, process.program, process)
    except RbtraceError:
        return None
    if may_have:
        return None
    if process.is_ending():  # what it has mapped is gone by then, a Ruby or not
        return gone(process.pid)
    return NoAgent(
        f"process {process.pid} ({process.comm}) runs no Ruby",
        "only CRuby (MRI) is read; JRuby and TruffleRuby are other programs",
    )


@lru_cache(maxsize=16)
def _may_be_ruby(identity: tuple[int, int], program: bytes, process: Process) -> bool:
    """Found once a program: who waits for an agent asks often."""
    files = mapped_files(process)
    # Most processes that are asked have one by its name.
    return any(is_ruby_binary(file.binary.path) for file in files) or any(
        _names_ruby(process, file) for file in files
    )


def _names_ruby(process: Process, file: MappedFile) -> bool:
    """Does it define, or at least use, what every Ruby has?"""
    with suppress(BadElf), open_mapped(process, file) as opened:
        elf = ElfFile(opened.fd, Budget())
        sections = (*elf.named(b".dynstr"), *elf.named(b".strtab"))
        return any(_MARK in elf.data(each, _MAX_STRINGS) for each in sections)
    return False


def _connections(
    process: Process, directory: str, reasons: list[str]
) -> Iterator[socket.socket]:
    """Those of a directory that are the process's own; ``reasons`` why others not."""
    try:
        fd = _open_directory(process, directory)
    except (OSError, RbtraceError):
        return
    try:
        for name in _names(process, fd):
            connection = _connect(f"/proc/self/fd/{fd}/{name}", reasons)
            if connection is not None:
                problem = _foreign(process, connection)
                if problem is None:
                    yield connection
                    return
                connection.close()
                reasons.append(problem)
    finally:
        os.close(fd)


def _open_directory(process: Process, directory: str) -> int:
    """It is no link itself; links on the way to it lead where they do in there."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not directory.startswith("/"):
        return process.open(f"cwd/{directory}", flags)
    before, name = os.path.split(directory.rstrip("/"))
    if name in ("", ".", ".."):
        before, name = directory, "."
    root = process.open("root", os.O_PATH | os.O_DIRECTORY)
    try:
        way = open_directory_in_root(root, before)
    finally:
        os.close(root)
    try:
        return os.open(name, flags, dir_fd=way)
    finally:
        os.close(way)


def _directories(process: Process) -> Iterator[str]:
    """By preference, as the process has them."""
    asked = _environment(process)
    if asked:
        # A relative one was in the working directory of that time.
        yield asked
    uid = inner_uid(process, process.uid)
    uid = process.uid if uid is None else uid
    yield from (f"{base}/rbtrace-agent-{uid}" for base in _BASES)


def _environment(process: Process) -> str:
    """TRACEPOINT_AGENT_DIR, as the process was started with."""
    try:
        words = process.read("environ").split(b"\0")
    except RbtraceError:
        return ""
    found = (word[len(_VARIABLE) :] for word in words if word.startswith(_VARIABLE))
    return os.fsdecode(next(found, b""))


def inner_uid(process: Process, uid: int) -> int | None:
    """The number that a user of ours has for the process, None if it has none."""
    for inner, outer, count in _uid_map(process):
        if outer <= uid < outer + count:
            return inner + uid - outer
    return None


def can_tell_users(process: Process) -> bool:
    """Can the process tell its own user from those without a number for it?

    Each of them is shown to it as nobody.
    """
    knows_all = sum(count for *_, count in _uid_map(process)) >= _ALL_USERS
    return knows_all or inner_uid(process, process.uid) != _NOBODY


def _uid_map(process: Process) -> list[tuple[int, int, int]]:
    """Rows of (first number in there, first of ours, how many)."""
    rows = (line.split() for line in process.read("uid_map").splitlines())
    return [(int(inner), int(outer), int(count)) for inner, outer, count in rows]


def _names(process: Process, directory: int) -> Iterator[str]:
    """The name by the rule first; a time namespace has other start times."""
    inner = parse_status(process.read("status")).get("NSpid", "").split()
    pid = inner[-1] if inner and inner[-1].isdigit() else str(process.pid)
    name = f"{pid}-{process.start_time}.sock"
    yield name
    pattern = re.compile(rf"{pid}-\d+\.sock", re.ASCII)
    with os.scandir(directory) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if entry.name != name and pattern.fullmatch(entry.name):
                yield entry.name


def _connect(path: str, reasons: list[str]) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Blocking: a queue that is full is waited for only so (unix_stream_connect).
        wait = _TIMEOUT.pack(CONNECT_SECONDS, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        connection.connect(path)
        return connection
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        reasons.append("its socket is there, but nobody listens")
    except BlockingIOError:
        reasons.append("its socket does not take a connection; too many wait already")
    except OSError as error:
        reasons.append(f"its socket cannot be used: {safe_text(str(error).encode())}")
    connection.close()
    return None


def _foreign(process: Process, connection: socket.socket) -> str | None:
    """Why the other end is not the process, or None if it is (SO_PEERCRED)."""
    size = _CREDENTIALS.size
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    if pid != process.pid:
        return f"who listens on its socket is process {pid}"
    if uid != process.uid:
        return f"its socket is of user {uid}, whom it is no more"
    return None
