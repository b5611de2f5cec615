"""A socket where an agent's would be, that answers one request without bound.

Words: the request, and what comes instead of an answer.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

sys.path.insert(0, os.environ["TRACER"])

from rbtrace_py.agent.protocol import decode_map, encode

DATA, REPLY, ERROR, EVENT = 2, 3, 4, 5
REQUEST_HEAD = struct.Struct("<IBBHI")
MIB = 1 << 20
ANSWERS: dict[str, dict[str, Any]] = {
    "hello": {"version": 1, "address": None},
    "prove": {"level": "eval", "native": True, "commands": []},
}


def frame(kind: int, number: int, body: bytes, flags: int = 0) -> bytes:
    return REQUEST_HEAD.pack(len(body), kind, flags, 0, number) + body


def pieces(kind: int, number: int, body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), 65_536):
        yield frame(DATA, number, body[at : at + 65_536])
    yield frame(kind, number, b"", flags=1)


def endless(number: int) -> Iterator[bytes]:
    """A map that goes on and on."""
    while True:
        yield frame(DATA, number, bytes(65_536))


def events(number: int) -> Iterator[bytes]:
    """Yield what nobody asked for."""
    body = encode({"event": "exit", "methods": ["x" * 900] * 1100})
    while True:
        yield from pieces(EVENT, 0, body)


def maps(number: int) -> Iterator[bytes]:
    """Five bytes each, which take fifty times that."""
    count = 8 * MIB // 5
    key = struct.pack("<I", 7) + b"threads"
    array = b"a" + struct.pack("<I", count) + count * b"m\0\0\0\0"
    yield from pieces(REPLY, number, b"m" + struct.pack("<I", 1) + key + array)
    yield from endless(0)


def wide(number: int) -> Iterator[bytes]:
    """Text of which each character takes four bytes for the sake of one."""
    yield from pieces(ERROR, number, wide_error())
    yield from endless(0)


@cache
def wide_error() -> bytes:
    text = "\N{PILE OF POO}" + "x" * (200 * MIB)
    return encode({"code": "raised", "message": text})


def whole(number: int) -> Iterator[bytes]:
    """A map in one frame that is none."""
    yield frame(REPLY, number, b"m\xff\xff\xff\xff")


def records(number: int) -> Iterator[bytes]:
    """Exceptions, each as long as it can be, faster than they can be shown."""
    fields = [b"1", b"1", b"0", b"A", b"m", b"p", b"1", b"n", *[bytes(65_536)] * 15]
    sized = b"".join(struct.pack("<I", len(one)) + one for one in fields)
    body = struct.pack("<I", len(fields)) + sized
    while True:
        for at in range(0, len(body), 65_536):
            yield frame(DATA, number, body[at : at + 65_536], flags=1)


def main(command: str, attack: str) -> None:
    with open("/proc/self/stat") as stat:
        start = stat.read().rpartition(")")[2].split()[19]
    os.chdir(os.environ["TRACEPOINT_AGENT_DIR"])
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{os.getpid()}-{start}.sock")
    server.listen()
    # What takes seconds to make is made before it is asked for.
    next(globals()[attack](0))
    print("ready", flush=True)
    while True:
        serve(server.accept()[0], command, globals()[attack])


def serve(connection: socket.socket, command: str, attack: Any) -> None:
    try:
        while head := connection.recv(12, socket.MSG_WAITALL):
            length, _, _, _, number = REQUEST_HEAD.unpack(head)
            body = connection.recv(length, socket.MSG_WAITALL)
            asked = decode_map(body)["command"]
            if asked == command:
                for one in attack(number):
                    connection.sendall(one)
            else:
                connection.sendall(frame(REPLY, number, encode(ANSWERS[asked])))
    except ConnectionError:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
