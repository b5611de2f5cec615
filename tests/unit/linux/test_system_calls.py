"""The awaited events of a system call, by its number and arguments, and the owners
of file locks."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.descriptors import _address, _internet
from rbtrace_py.linux.file_locks import _holders
from rbtrace_py.linux.system_calls import Awaited, SystemCall, awaited

POLLED = struct.pack("=ihhihhihh", 5, 1, 0, -1, 1, 0, 6, 5, 0)
SELECTED = struct.pack("=2Q", 0b1001, 1)


class Bytes:
    """Memory with given bytes at given addresses."""

    def __init__(self, **places: bytes) -> None:
        self.places = {int(name[1:], 16): data for name, data in places.items()}

    def read(self, address: int, size: int) -> bytes:
        for start, data in self.places.items():
            part = data[address - start : address - start + size]
            if start <= address and len(part) == size:
                return part
        raise UnreadableMemory(f"{address:#x}")

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(*one) for one in ranges]


MEMORY = Bytes(
    x1000=POLLED,
    x2000=SELECTED,
    x2100=struct.pack("=2Q", 0b1010, 0),
    x3000=b"/tmp/a\x1b b\0".ljust(256, b"z"),
    x40F8=b"/at/the/",
    x5000=struct.pack("=III", 2, 0, 77),
)


@pytest.mark.parametrize(
    ("number", "arguments", "expected"),
    [
        (0, (7,), Awaited("read", ((7, "read"),))),
        (1, (8,), Awaited("write", ((8, "write"),))),
        (42, (9,), Awaited("connect", ((9, "connect"),))),
        (288, (3,), Awaited("accept", ((3, "accept"),))),
        (232, (4,), Awaited("epoll", ((4, "epoll"),))),
        (73, (5, 2), Awaited("lock", ((5, "lock"),))),
        (72, (5, 7), Awaited("lock", ((5, "lock"),))),
        (72, (5, 3), Awaited("fcntl")),
        (61, (1234,), Awaited("wait", pid=1234)),
        (61, (0xFFFFFFFFFFFFFFFF,), Awaited("wait", pid=0)),
        (247, (1, 99), Awaited("wait", pid=99)),
        (247, (0, 99), Awaited("wait", pid=0)),
        (271, (0x1000, 3), Awaited("poll", ((5, "read"), (6, "read or write")))),
        (7, (0xBAD, 3), Awaited("poll")),
        (
            270,
            (65, 0x2000, 0x2100, 0),
            Awaited(
                "poll", ((0, "read"), (1, "write"), (3, "read or write"), (64, "read"))
            ),
        ),
        (257, (0, 0x3000), Awaited("open", path="/tmp/a\\x1b b")),
        (2, (0x40F8,), Awaited("open", path="/at/the/")),
        (202, (0x5000, 128, 2), Awaited("futex", lock=0x5000, owner=77)),
        (202, (0x5000, 128 + 9, 2), Awaited("futex")),
        (202, (0x5000, 128, 0), Awaited("futex")),
        (202, (0x9000, 128, 2), Awaited("futex", lock=0x9000)),
        (34, (), Awaited("pause")),
        (999, (), Awaited("system call 999")),
    ],
)
def test_what_it_waits_for(
    number: int, arguments: tuple[int, ...], expected: Awaited
) -> None:
    whole = (*arguments, *(0,) * (6 - len(arguments)))
    assert awaited(SystemCall(number, whole), MEMORY) == expected


def test_who_holds_a_lock() -> None:
    text = """\
1: FLOCK  ADVISORY  WRITE 30 fe:01:99 0 EOF
1: -> FLOCK  ADVISORY  WRITE 31 fe:01:99 0 EOF
2: POSIX  ADVISORY  READ 0 fe:01:99 0 EOF
3: POSIX  ADVISORY  READ 20 fe:01:99 0 9
4: POSIX  ADVISORY  READ 40 fe:01:9 0 9
"""
    assert _holders(text, "fe:01:99") == [20, 30]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("0100007F:0050", "127.0.0.1:80"),
        ("00000000000000000000000001000000:0050", "[::1]:80"),
        ("0000000000000000FFFF00000100007F:1F90", "127.0.0.1:8080"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert _address(text) == shown


def test_a_line_that_is_none() -> None:
    assert _internet("tcp", ["0:", "x", "y", "01"]) == ""
