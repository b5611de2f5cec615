"""Frames and values of the agent, and an agent that sends arbitrary data."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from processes import times
from rbtrace_py.agent import client, protocol
from rbtrace_py.agent.client import Agent, AgentError
from rbtrace_py.agent.protocol import (
    BrokenAgent,
    Channel,
    MalformedAnswer,
    decode_map,
    encode,
)
from rbtrace_py.errors import RbtraceError, UsageError

HELLO: dict[str, Any] = {"version": 1, "address": None}
REQUEST, DATA, REPLY, ERROR, EVENT, CANCEL = range(1, 7)
COMMANDS = [
    "arm",
    "disarm",
    "status",
    "clock",
    "names",
    "threads",
    "eval",
    "backtraces",
    "memory",
    "heapdump",
    "shapesdump",
    "fork",
    "stop",
]
SEED = 20_260_101


class Alive:
    """A process that lives on, whatever its agent does."""

    pid = 7
    program = b"ruby"
    identity = (7, 0)

    def threads(self) -> list[int]:
        return []

    def alive(self) -> bool:
        return True

    def is_ending(self) -> bool:
        return False

    def wait(self, timeout: float) -> bool:
        return False

    def read(self, name: str) -> bytes:
        return b"7 (ruby) S" + b" 0" * 49


def frame(kind: int, body: bytes, request: int = 3, flags: int = 0) -> bytes:
    return struct.pack("<IBBHI", len(body), kind, flags, 0, request) + body


Ask = Callable[..., Any]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Call an agent: it says hello and ``data``, and hangs up unless it ``stays``."""

    def call(
        data: bytes,
        stays: bool = False,
        seconds: float = 10,
        command: str = "backtraces",
        **rest: Any,
    ) -> protocol.Map:
        ours, its = socket.socketpair()
        monkeypatch.setattr(client, "connect", lambda *_: ours)
        with its, ours:
            greeting = frame(REPLY, encode(HELLO), request=1)
            data = greeting + frame(REPLY, encode({}), request=2) + data
            writer = threading.Thread(target=send, args=(its, data, stays))
            writer.start()
            try:
                with Agent(Alive()) as agent:  # type: ignore[arg-type]
                    return agent.call(command, {}, seconds, **rest)
            finally:
                ours.close()
                writer.join()

    return call


def send(to: socket.socket, data: bytes, stays: bool) -> None:
    """Send as much as the receiver accepts."""
    with suppress(OSError):
        to.sendall(data)
        if not stays:
            to.shutdown(socket.SHUT_WR)


VALUES = [
    None,
    True,
    False,
    0,
    -(1 << 63),
    (1 << 63) - 1,
    1.5,
    "",
    "Grüße\0",
    b"\xff\0",
    [],
    [1, ["a", None]],
    {},
    {"a": {"b": [1, 2.5]}, "": b""},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back(value: Any) -> None:
    assert decode_map(encode({"it": value})) == {"it": value}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n",
        encode([{}]),
        encode({}) + b"n",
        b"m" + struct.pack("<I", 1),
        b"m" + struct.pack("<I", 0xFFFFFFFF),
        b"m" + struct.pack("<II", 1, 0xFFFFFFFF) + b"a",
        b"m" + struct.pack("<I", 2) + 2 * (struct.pack("<I", 1) + b"kn"),
        b"m" + struct.pack("<II", 1, 1) + b"\xffn",
        encode({"a": "\x7f"}).replace(b"\x7f", b"\xff"),
        encode({"a": None})[:-1] + b"x",
        encode({"a": None})[:-1] + b"a\xff\xff\xff\xff",
        encode({"a": None})[:-1] + b"i1234567",
        encode({"a": None})[:-1] + 16 * b"a\x01\0\0\0" + b"n",
    ],
)
def test_malformed_maps(data: bytes) -> None:
    with pytest.raises(BrokenAgent):
        decode_map(data)


def test_the_agents_own_words_are_escaped() -> None:
    data = encode({"overhead": ["\x1b[31m", "\u202eé\\"], "targets": 1})
    found = decode_map(data, is_data=False)
    assert found == {"overhead": ["\\x1b[31m", "\\u202eé\\x5c"], "targets": 1}


def test_16_levels_are_a_map() -> None:
    value = encode({"a": None})[:-1] + 14 * b"a\x01\0\0\0" + b"n"
    assert list(decode_map(value)) == ["a"]


def test_too_many_values() -> None:
    assert len(decode_map(encode({"a": [None] * 98}), 100)["a"]) == 98
    with pytest.raises(MalformedAnswer):
        decode_map(encode({"a": [None] * 99}), 100)


@pytest.mark.parametrize(
    "head",
    [
        (0, 0, 0, 0, 3),
        (0, REQUEST, 0, 0, 3),
        (0, CANCEL, 0, 0, 3),
        (0, 7, 0, 0, 3),
        (65_537, REPLY, 0, 0, 3),
        (0xFFFFFFFF, DATA, 1, 0, 3),
        (0, REPLY, 2, 0, 3),
        (0, DATA, 4, 0, 3),
        (1, REPLY, 1, 0, 3),
        (0, REPLY, 0, 1, 3),
    ],
)
def test_malformed_frames(head: tuple[int, ...], ask: Ask) -> None:
    with pytest.raises(BrokenAgent):
        ask(struct.pack("<IBBHI", *head) + bytes(64))


def test_an_answer(ask: Ask) -> None:
    event = frame(EVENT, encode({"event": "exit"}), request=0)
    assert ask(event + frame(REPLY, encode({"rss": 1}))) == {"rss": 1}


def test_a_long_answer_and_what_comes_between(ask: Ask) -> None:
    body = encode({"it": "x" * 100_000})
    halves = [frame(DATA, body[:60_000]), frame(DATA, body[60_000:])]
    between = frame(DATA, encode({"event": "exit"}), 0) + frame(EVENT, b"", 0, 1)
    got: list[bytes] = []
    found = ask(
        halves[0]
        + frame(DATA, b"out", flags=Channel.STDOUT)
        + between
        + halves[1]
        + frame(REPLY, b"", flags=1),
        sinks={Channel.STDOUT: got.append},
    )
    assert found == {"it": "x" * 100_000}
    assert got == [b"out"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_without_end(command: str, ask: Ask) -> None:
    size = protocol.bound_of(command).size
    data = frame(DATA, bytes(65_536)) * (size // 65_536 + 1)
    with pytest.raises(MalformedAnswer, match=f"longer than {size} bytes"):
        ask(data, command=command)


def test_events_without_end(ask: Ask) -> None:
    with pytest.raises(MalformedAnswer, match="too many events"):
        ask(frame(EVENT, encode({}), 0) * 5)
    with pytest.raises(MalformedAnswer, match="longer than 65536 bytes"):
        ask(frame(DATA, bytes(65_536), 0) * 2)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (frame(REPLY, encode({}), request=4), "another request"),
        (frame(REPLY, encode({}), request=0), "another request"),
        (frame(DATA, b"", request=0, flags=1), "another request"),
        (frame(DATA, b"x", flags=Channel.FILE), "unrequested"),
        (b"", "hung up"),
        (frame(REPLY, encode({}))[:-1], "hung up"),
        (frame(REPLY, b"i"), "truncated"),
    ],
)
def test_malformed_answers(data: bytes, text: str, ask: Ask) -> None:
    with pytest.raises(BrokenAgent, match=text):
        ask(data)


@pytest.mark.parametrize("request_", [0, 3])
def test_a_refusal(request_: int, ask: Ask) -> None:
    reply = {"code": "busy", "message": "so \x1b[31m", "pid": 3}
    with pytest.raises(AgentError) as caught:
        ask(frame(ERROR, encode(reply), request_))
    assert (caught.value.code, caught.value.reply) == ("busy", reply)
    assert str(caught.value) == "process 7: so \\x1b[31m"


def test_silence_has_an_end(ask: Ask) -> None:
    with pytest.raises(BrokenAgent, match="does not answer"):
        ask(b"", stays=True, seconds=0.05)


def test_a_frame_that_never_ends(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FRAME_SECONDS", 0.05)
    with pytest.raises(BrokenAgent, match="does not answer"):
        ask(frame(REPLY, b"abc")[:-1], stays=True)


def test_another_version(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HELLO, "version", 2)
    with pytest.raises(BrokenAgent, match="version"):
        ask(b"")


def test_a_request_that_is_too_long() -> None:
    most = protocol.MAX_REQUEST - len(encode({"code": ""}))
    assert protocol.pack_request(1, {"code": "a" * most})
    with pytest.raises(UsageError):
        protocol.pack_request(1, {"code": "a" * (most + 1)})


def test_100_000_malformed_messages(ask: Ask) -> None:
    """Each frame is refused or happens to be a valid answer."""
    source = random.Random(SEED)
    refused = 0
    sinks = {channel: len for channel in Channel if channel is not Channel.MAP}
    for _ in range(times(100_000)):
        try:
            found = ask(malformed(source), sinks=sinks)
            assert isinstance(found, dict)
        except RbtraceError:
            refused += 1
    assert refused > times(100_000) * 3 // 4


def malformed(source: random.Random) -> bytes:
    kinds = (_noise, _bad_body, _bad_body, _flipped, _flipped, _cut, _shuffled)
    return source.choice(kinds)(source)


def _noise(source: random.Random) -> bytes:
    return source.randbytes(source.randrange(64))


def _bad_body(source: random.Random) -> bytes:
    """A valid header, followed by values of any kind in any order."""
    body = b"m" + bytes(source.choices(b"ntfidsbam\0\1\2\xff", k=source.randrange(90)))
    return frame(source.randrange(2, 6), body, source.randrange(4))


def _good(source: random.Random) -> list[bytes]:
    body = encode({"threads": [{"name": "a", "backtrace": ["b"] * 3}], "n": 1.5})
    at = source.randrange(len(body))
    return [
        frame(EVENT, encode({"event": "exit"}), 0),
        frame(DATA, b"text", flags=source.randrange(4)),
        frame(DATA, body[:at]),
        frame(DATA, body[at:]),
        frame(REPLY, b"", flags=1),
    ]


def _flipped(source: random.Random) -> bytes:
    data = bytearray(b"".join(_good(source)))
    for _ in range(source.randrange(1, 6)):
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    return bytes(data)


def _cut(source: random.Random) -> bytes:
    data = b"".join(_good(source))
    return data[: source.randrange(len(data))]


def _shuffled(source: random.Random) -> bytes:
    frames = _good(source)
    source.shuffle(frames)
    return b"".join(frames[1:])
