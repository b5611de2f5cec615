"""A process that pretends to be an agent, and attacks the tracer.

Arguments: the request that is attacked, and the attack, a function below. All other
requests get an ordinary answer. ``arm`` sends shared memory in which two methods were
called, falsified by the method of ``Memory`` that LIE names. It prints "attack" when
the attack begins.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

sys.path.insert(0, os.environ["TRACER"])

from rbtrace_py.agent.protocol import decode_map, encode

DATA, REPLY, ERROR, EVENT = 2, 3, 4, 5
REQUEST_HEAD = struct.Struct("<IBBHI")
MIB = 1 << 20
GIB = 1 << 30
ESCAPE = "\x1b[31mred\x07"
THREAD = {
    "native_id": 1,
    "name": ESCAPE,
    "status": ESCAPE,
    "main": True,
    "agent": False,
    "backtrace": [ESCAPE] * 2,
}
ANSWERS: dict[str, dict[str, Any]] = {
    "hello": {"version": 1, "address": None},
    "prove": {
        "level": "eval",
        "native": True,
        "commands": [],
        "ruby": "3.1.2",
        "description": f"ruby {ESCAPE}",
        "program": ESCAPE,
        "native_reason": ESCAPE,
    },
    "arm": {"overhead": [ESCAPE], "targets": 0, "near": [f"A#{ESCAPE}"]},
    "clock": {"ticks": 41_000, "ns": 20_500},
    "threads": {"threads": [THREAD]},
    "names": {
        "methods": [
            {"index": 0, "kind": 0},
            {"index": 1, "kind": 1, "owner": ESCAPE, "name": ESCAPE, "path": ESCAPE},
            {"index": 2, "kind": 1, "owner": ESCAPE, "name": ESCAPE, "path": ESCAPE},
        ]
    },
    "disarm": {"names": []},
    "backtraces": {"threads": [THREAD]},
    "memory": {"gc": {ESCAPE: ESCAPE}, "objects": {ESCAPE: 1, "TOTAL": 1}},
    "eval": {"value": ESCAPE, "class": ESCAPE, "ns": 1},
}
"""Ordinary answers but for their texts, which steer a terminal."""
MODES = {"ring": 1, "table": 2, "slow": 3}
HEADER, METHOD, BLOCK, PLACE, STREAM, RECORD = 4096, 128, 64, 8, 64, 16
SEALS = 2 | 4  # shrink, grow


def frame(kind: int, number: int, body: bytes, flags: int = 0) -> bytes:
    return REQUEST_HEAD.pack(len(body), kind, flags, 0, number) + body


def pieces(kind: int, number: int, body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), 65_536):
        yield frame(DATA, number, body[at : at + 65_536])
    yield frame(kind, number, b"", flags=1)


def endless(number: int) -> Iterator[bytes]:
    """Yield a map that never ends."""
    while True:
        yield frame(DATA, number, bytes(65_536))


def events(number: int) -> Iterator[bytes]:
    """Yield events without a request."""
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
    """Return an invalid map in one frame."""
    yield frame(REPLY, number, b"m\xff\xff\xff\xff")


def records(number: int) -> Iterator[bytes]:
    """Exceptions, each as long as it can be, faster than they can be shown."""
    fields = [b"1", b"1", b"0", b"A", b"m", b"p", b"1", b"n", *[bytes(65_536)] * 15]
    sized = b"".join(struct.pack("<I", len(one)) + one for one in fields)
    body = struct.pack("<I", len(fields)) + sized
    while True:
        for at in range(0, len(body), 65_536):
            yield frame(DATA, number, body[at : at + 65_536], flags=1)


def refused(number: int) -> Iterator[bytes]:
    """An error with a text that steers a terminal."""
    yield frame(ERROR, number, encode({"code": "state", "message": ESCAPE}))


def raised(number: int) -> Iterator[bytes]:
    """An exception with texts that steer a terminal."""
    texts = {"class": ESCAPE, "message": f"{ESCAPE}\n{ESCAPE}", "backtrace": [ESCAPE]}
    yield frame(ERROR, number, encode({"code": "raised", **texts}))


def no_hook(number: int) -> Iterator[bytes]:
    """An agent that has no hook for this Ruby."""
    yield frame(REPLY, number, encode({**ANSWERS["prove"], "native": False}))


def compiled(number: int) -> Iterator[bytes]:
    """An agent whose Ruby compiles."""
    yield frame(REPLY, number, encode({**ANSWERS["prove"], "jit": ESCAPE}))


def silent(number: int) -> Iterator[bytes]:
    """No answer, while the connection stays."""
    threading.Event().wait()
    yield b""


def chatter(number: int) -> Iterator[bytes]:
    """The ordinary answer to ``clock``, and then events without end."""
    yield frame(REPLY, number, encode(ANSWERS["clock"]))
    while True:
        yield 1000 * frame(EVENT, 0, encode({"event": "news"}))


def one_name(number: int) -> Iterator[bytes]:
    """One name per answer, so that there are many requests."""
    one_name.index += 1  # type: ignore[attr-defined]
    name = {"index": one_name.index, "kind": 1}  # type: ignore[attr-defined]
    yield frame(REPLY, number, encode({"methods": [name]}))


one_name.index = -1  # type: ignore[attr-defined]


def wide_names(number: int) -> Iterator[bytes]:
    """As many names as fit, of which each character takes four bytes."""
    names = []
    for _ in range(4096):
        one_name.index += 1  # type: ignore[attr-defined]
        text = "\N{PILE OF POO}" + "x" * 900
        method = {"kind": 1, "owner": text, "name": text}
        names.append({"index": one_name.index, **method})  # type: ignore[attr-defined]
    yield from pieces(REPLY, number, encode({"methods": names}))


class Memory:
    """The memory that ``arm`` sends, which contains one lie.

    blocks: places of the blocks from number 1 on; count: all their counters
    """

    def __init__(self, asked: dict[str, Any], lie: str) -> None:
        self.mode = MODES[asked["mode"]]
        self.methods, self.streams = asked["max_methods"], asked["max_streams"]
        self.records, self.used, self.carries = asked["ring_records"], 3, 0
        self.block_number = 1 << 20
        self.place_size, self.record_size = PLACE, RECORD
        self.blocks: Iterator[tuple[int, int, int]] = iter([(1, 3, 0)])
        self.count = 1
        if lie:
            getattr(self, lie)()

    def wide_places(self) -> None:
        self.place_size = 2 * GIB - 8
        self.block_number = 2

    def wide_records(self) -> None:
        self.record_size, self.streams = 2 * GIB // self.records, 1

    def many_streams(self) -> None:
        self.streams, self.records = 1 << 24, 16

    def many_methods(self) -> None:
        self.used = self.methods

    def one_histogram(self) -> None:
        """All blocks are of one method, in the middle of a carry that never ends."""
        self.carries = 7
        self.blocks = ((1, 3, 0) for _ in range(self.block_number - 1))

    def carry(self) -> None:
        """As many blocks as there are, in the middle of a carry that never ends."""
        self.carries, self.used, self.count = 7, self.methods, 0
        self.blocks = self._all_blocks(self.methods - 1)

    def full(self) -> None:
        """As many counters as there are, none of which is 0."""
        self.used = self.methods
        self.blocks = self._all_blocks(self.methods - 1)

    def _all_blocks(self, methods: int) -> Iterator[tuple[int, int, int]]:
        for number in range(self.block_number - 1):
            yield 1 + number % methods, number // methods, 0

    def files(self) -> list[int]:
        streams_at = HEADER
        methods_at = streams_at + self.streams * STREAM
        places_at = methods_at + self.methods * METHOD
        blocks_at = places_at + self.block_number * self.place_size
        rings_at = blocks_at + self.block_number * BLOCK
        size = rings_at + self.streams * self.records * self.record_size
        data = file_of(size)
        head = bytearray(HEADER)
        clock = (1 << 31, 1_000, 500, 21_000, 10_500)
        one = struct.pack(
            "<8sIIQIIII", b"RBTRAGT1", 1, HEADER, size, 7, self.mode, 1, 1
        )
        head[:40] = one
        struct.pack_into("<QQQQQ", head, 40, *clock)
        struct.pack_into("<QII", head, 80, methods_at, self.methods, METHOD)
        struct.pack_into("<QII", head, 96, places_at, 2, self.place_size)
        struct.pack_into("<QII", head, 112, blocks_at, self.block_number, BLOCK)
        struct.pack_into("<QII", head, 128, streams_at, self.streams, STREAM)
        struct.pack_into("<QII", head, 144, rings_at, self.records, self.record_size)
        places = b"".join(struct.pack("<IHH", *block) for block in self.blocks)
        used = len(places) // PLACE
        struct.pack_into("<6I", head, 192, 1, self.used, 1 + used, 1, 0, 0)
        struct.pack_into("<Q", head, 288, self.carries)
        os.pwrite(data, head, 0)
        os.pwrite(data, places, places_at + self.place_size)
        for at in range(1, 1 + used, 1 << 16):
            count = min(1 << 16, 1 + used - at)
            counters = bytes([self.count]) * BLOCK * count
            os.pwrite(data, counters, blocks_at + at * BLOCK)
        for number in range(1, self.used):
            row = struct.pack("<QQII40x6Q", 1, 1, 1, 1, 9, 9, 9, 9, 9, 9)
            os.pwrite(data, row, methods_at + number * METHOD)
        os.pwrite(data, struct.pack("<QQ", self.records, self.records), streams_at)
        control = file_of(64 * (self.streams + 1))
        os.pwrite(control, struct.pack("<8sII", b"RBTRCTL1", 1, self.streams), 0)
        for fd in (data, control):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return [data, control]


def file_of(size: int) -> int:
    fd = os.memfd_create("agent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    return fd


def answer(connection: socket.socket, number: int, asked: dict[str, Any]) -> None:
    command = asked["command"]
    reply = dict(ANSWERS[command])
    rights = []
    if command == "arm":
        if not asked.get("targets"):
            del reply["targets"]
        files = Memory(asked, os.environ.get("LIE", "")).files()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    connection.sendmsg([frame(REPLY, number, encode(reply))], rights)


def main(command: str, attack: str) -> None:
    with open("/proc/self/stat") as stat:
        start = stat.read().rpartition(")")[2].split()[19]
    os.chdir(os.environ["TRACEPOINT_AGENT_DIR"])
    server = socket.socket(socket.AF_UNIX)
    server.bind(f"{os.getpid()}-{start}.sock")
    server.listen()
    if attack == "wide":
        wide_error()  # which takes seconds
    print("ready", flush=True)
    while True:
        serve(server.accept()[0], command, globals().get(attack))


@cache
def say_once(line: str) -> None:
    print(line, flush=True)


def serve(connection: socket.socket, command: str, attack: Any) -> None:
    try:
        while head := connection.recv(12, socket.MSG_WAITALL):
            length, _, _, _, number = REQUEST_HEAD.unpack(head)
            body = connection.recv(length, socket.MSG_WAITALL)
            asked = decode_map(body)
            if asked["command"] == command:
                say_once("attack")
                for one in attack(number):
                    connection.sendall(one)
            else:
                answer(connection, number, asked)
    except ConnectionError:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
