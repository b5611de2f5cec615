"""Names of a process's descriptors: files, pipes, and sockets with their peers."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from functools import cached_property

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.pipes import MOST_DESCRIPTORS, Pipes, access_mode
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.text import safe_text

_TABLES = ("tcp", "tcp6", "udp", "udp6")
_STATES = {"02": "connecting", "0A": "listening"}
"""TCP_SYN_SENT and TCP_LISTEN (include/net/tcp_states.h)."""
_UNIX_LISTENS = "00010000"
"""__SO_ACCEPTCON among the flags of /proc/net/unix (net/unix/af_unix.c)."""
_LARGEST_TABLE = 1 << 24


class Descriptors:
    """Names of the descriptors of ``process``; its sockets are read once."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._known: dict[int, str] = {}
        self._pipes = Pipes()

    def name(self, number: int) -> str:
        """Return the name of a descriptor; "" if it is closed.

        Examples are ``pipe:[123]``, ``tcp 127.0.0.1:4 -> 127.0.0.1:80``, and a path.
        The name is safe to print.
        """
        if number not in self._known:
            self._known[number] = self._name(number)
        return self._known[number]

    def _name(self, number: int) -> str:
        link = self._link(number)
        if link.startswith("socket:["):
            inode = link[8:-1]
            return self._sockets.get(inode) or link
        return safe_text(os.fsencode(link))

    def _link(self, number: int) -> str:
        return self._process.readlink(f"fd/{number}") or ""

    def other_ends(self, number: int) -> list[int]:
        """Return the descriptors of this process that are the other end of a pipe.

        A pipe that one descriptor opened for reading and writing has no other end.
        """
        link = self._link(number)
        if not link.startswith("pipe:["):
            return []
        ours = self._mode(number)
        return [
            fd
            for fd in self._numbers()
            if fd != number and self._link(fd) == link and self._mode(fd) != ours
        ]

    def other_processes(self, number: int) -> list[int]:
        """Return the pids of other processes that have a pipe's other end open."""
        link = self._link(number)
        if not link.startswith("pipe:["):
            return []
        users = self._pipes.users(link, self._mode(number))
        return [pid for pid in users if pid != self._process.pid]

    def _numbers(self) -> list[int]:
        try:
            fd = self._process.open("fd", os.O_RDONLY | os.O_DIRECTORY)
        except RbtraceError:
            return []
        try:
            return sorted(map(int, os.listdir(fd)[:MOST_DESCRIPTORS]))
        except OSError:
            return []
        finally:
            os.close(fd)

    def _mode(self, number: int) -> int:
        """Return O_RDONLY, O_WRONLY or O_RDWR, by ``fdinfo``; -1 if unknown."""
        try:
            return access_mode(self._process.read(f"fdinfo/{number}", 4096))
        except RbtraceError:
            return -1

    def watched(self, number: int) -> list[int]:
        """Return the descriptors that an epoll descriptor watches."""
        try:
            lines = self._process.read(f"fdinfo/{number}", 1 << 20).split(b"\n")
        except RbtraceError:
            return []
        return [int(line.split()[1]) for line in lines if line.startswith(b"tfd:")]

    @cached_property
    def _sockets(self) -> dict[str, str]:
        """Names of the sockets in the process's network namespace, by inode."""
        found: dict[str, str] = {}
        for table in _TABLES:
            for words in self._rows(f"net/{table}"):
                if len(words) > 9:
                    found[words[9]] = _internet(table.rstrip("6"), words)
        for words in self._rows("net/unix"):
            if len(words) > 6:
                path = f" {safe_text(os.fsencode(words[7]))}" if len(words) > 7 else ""
                state = ", listening" if words[3] == _UNIX_LISTENS else ""
                found[words[6]] = f"unix{path or f' socket:[{words[6]}]'}{state}"
        return found

    def _rows(self, name: str) -> Iterator[list[str]]:
        try:
            data = self._process.read(name, _LARGEST_TABLE)
        except RbtraceError:
            return
        for line in os.fsdecode(data).split("\n")[1:]:
            yield line.split()


def _internet(kind: str, words: list[str]) -> str:
    """Format ``tcp 127.0.0.1:4 -> 127.0.0.1:80``, or only the local address."""
    try:
        local, peer = _address(words[1]), _address(words[2])
    except (ValueError, struct.error, OSError):
        return ""
    state = _STATES.get(words[3], "") if kind == "tcp" else ""
    has_peer = not words[2].endswith(":0000")
    name = f"{kind} {local} -> {peer}" if has_peer else f"{kind} {local}"
    return f"{name}, {state}" if state else name


def _address(text: str) -> str:
    """Format ``0100007F:0016``: words in the machine's byte order, and a port."""
    number, _, port = text.partition(":")
    words = [int(number[at : at + 8], 16) for at in range(0, len(number), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    if packed.startswith(bytes(10) + b"\xff\xff"):
        return f"{socket.inet_ntop(socket.AF_INET, packed[12:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"
