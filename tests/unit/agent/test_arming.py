"""Arming, names and the end: with an agent that answers what it likes."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_memory import file_of, make_control, make_data

from rbtrace_py.agent import arming, client
from rbtrace_py.agent.arming import Armed, ArmRequest, Selector, Unsupported
from rbtrace_py.agent.client import AgentError
from rbtrace_py.agent.protocol import BrokenAgent, Map, decode_map, encode
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.model.calls import (
    NO_ROOM_METHOD,
    UNKNOWN_METHOD,
    CalledMethod,
    MethodKind,
)

REQUEST, DATA, REPLY, ERROR, EVENT, CANCEL = range(1, 7)
HELLO = {"version": 1, "native": True}
CLOCK = {"ticks": 1_001_000, "ns": 500_500}
ARMED = {"overhead": ["slower"]}


class Process:
    """A process that lives until its agent hangs up."""

    pid = 7
    program = b"ruby"
    identity = (7, 0)

    def threads(self) -> list[int]:
        return []

    def __init__(self) -> None:
        self.is_alive = True

    def alive(self) -> bool:
        return self.is_alive

    def is_ending(self) -> bool:
        return not self.is_alive

    def wait(self, timeout: float) -> bool:
        return not self.is_alive

    def namespace(self, kind: str) -> int | None:
        return None

    def read(self, name: str) -> bytes:
        """Read from a process that does not end: this one."""
        return Path(f"/proc/self/{name}").read_bytes()


class FakeAgent:
    """Answers in a thread; ``answers`` by command: a map, ERROR, or what makes one."""

    def __init__(self) -> None:
        self.ours, self._its = socket.socketpair()
        self.answers: dict[str, Any] = {
            "hello": {"version": 1},
            "prove": HELLO,
            "arm": ARMED,
            "clock": CLOCK,
            "disarm": {},
            "names": {"methods": []},
            "threads": {"threads": []},
        }
        self.asked: list[Map] = []
        self.files: list[int] | None = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def say(self, kind: int, map_: Map, request: int, files: list[int]) -> None:
        body = encode(map_)
        head = client.protocol._HEAD.pack(len(body), kind, 0, 0, request)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
        self._its.sendmsg([head + body], [rights] if files else [])
        for fd in files:
            os.close(fd)

    def hang_up(self) -> None:
        with suppress(OSError):
            self._its.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with suppress(ConnectionError):
            while head := self._its.recv(12):
                length, _, _, _, number = client.protocol._HEAD.unpack(head)
                asked = decode_map(self._its.recv(length, socket.MSG_WAITALL))
                self.asked.append(asked)
                self._answer(asked["command"], number)

    def _answer(self, command: str, number: int) -> None:
        answer = self.answers[command]
        if answer is None:
            self.hang_up()
            return
        kind = ERROR if "code" in answer else REPLY
        self.say(kind, answer, number, self._files() if command == "arm" else [])

    def _files(self) -> list[int]:
        if self.files is not None:
            return self.files
        return [file_of(make_data()), file_of(make_control())]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAgent]:
    made = FakeAgent()
    monkeypatch.setattr(client, "connect", lambda *_: made.ours)
    yield made
    made.hang_up()
    made.thread.join(60)


def arm(what: ArmRequest | None = None, process: Any = None, **rest: Any) -> Armed:
    return Armed(process or Process(), what or ArmRequest(HookMode.RING), **rest)


def names(*methods: Map) -> Map:
    return {"methods": list(methods)}


def test_the_fields_of_an_arm_request(agent: FakeAgent) -> None:
    select = [Selector("A", "instance", None)]
    what = ArmRequest(HookMode.SLOW, threshold_ns=5, cpu=True, select=select)
    with pytest.raises(BrokenAgent, match="something else"):
        arm(what)
    asked = agent.asked[2]
    assert (asked["command"], asked["mode"]) == ("arm", "slow")
    assert (asked["threshold_ns"], asked["cpu"], asked["whole"]) == (5, True, False)
    assert asked["select"] == [{"owner": "A", "kind": "instance", "name": None}]
    assert "offsets" not in asked


def test_what_it_says_is_safe_to_show(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that pretends to be an agent may send any text."""
    monkeypatch.setitem(ARMED, "overhead", ["\x1b[2J\r", "\udcff\u202e"])
    with arm() as armed:
        assert armed.overhead == ("\\x1b[2J\\x0d", "?\\u202e")


def test_what_it_says(agent: FakeAgent) -> None:
    with arm() as armed:
        assert armed.overhead == ("slower",)
        assert armed.scale.duration(10) == 5
        assert armed.disarm()
    assert [asked["command"] for asked in agent.asked][3:] == ["clock", "disarm"]


def test_before(agent: FakeAgent) -> None:
    def refuse(hello: Map) -> None:
        assert hello == HELLO
        raise NoSuchTarget("no")

    with pytest.raises(NoSuchTarget):
        arm(before=refuse)
    assert len(agent.asked) == 2


def test_without_a_hook(agent: FakeAgent) -> None:
    agent.answers["prove"] = {"native": False, "native_reason": "J\x1b"}
    with pytest.raises(Unsupported, match="cannot see methods: J"):
        arm()


def test_busy(agent: FakeAgent) -> None:
    agent.answers["arm"] = {"code": "busy", "message": "armed by process 5"}
    with pytest.raises(AgentError, match="armed by process 5") as caught:
        arm()
    assert caught.value.hint.startswith(
        "End that session first, or end both: rbtrace-py detach "
    )


Damage = Callable[[FakeAgent], None]


def _no_files(agent: FakeAgent) -> None:
    agent.files = []


def _one_file(agent: FakeAgent) -> None:
    agent.files = [file_of(make_data())]


def _many_files(agent: FakeAgent) -> None:
    agent.files = [file_of(make_data()) for _ in range(9)]


def _unsealed(agent: FakeAgent) -> None:
    agent.files = [file_of(make_data(), 0), file_of(make_control())]


def _another_mode(agent: FakeAgent) -> None:
    agent.files = [file_of(make_data(HookMode.TABLE)), file_of(make_control())]


def _no_clock(agent: FakeAgent) -> None:
    agent.answers["clock"] = {"ticks": 1, "ns": 1}


@pytest.mark.parametrize(
    "damage",
    [
        _no_files,
        _one_file,
        _many_files,
        _unsealed,
        _another_mode,
        _no_clock,
    ],
)
def test_answers_that_are_none(damage: Damage, agent: FakeAgent) -> None:
    damage(agent)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(BrokenAgent):
        arm()
    # The agent closes its own end. Our end of the pair and every received file are
    # closed.
    agent.hang_up()
    agent.thread.join(60)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_names(agent: FakeAgent) -> None:
    a = {"index": 1, "kind": 1, "owner": "A", "singleton": True, "name": "a" * 2000}
    b = {"index": 2, "kind": 5, "owner": None, "singleton": False, "line": "x"}
    agent.answers["names"] = names({"index": 0, "kind": 0}, a, b)
    with arm() as armed:
        assert armed.method(1) == CalledMethod(MethodKind.RUBY, "A", True, "a" * 1024)
        assert armed.method(0) is NO_ROOM_METHOD
        assert armed.method(2).full_name == "(unknown)"
        assert len(agent.asked) == 5
        assert armed.method(1 << 40) is UNKNOWN_METHOD


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"methods": 5},
        {"methods": [5]},
        names({"index": 0, "kind": 9}),
        names({"index": 0, "kind": None}),
        {"code": "state", "message": "no"},
        None,
    ],
)
def test_names_that_are_none(answer: Any, agent: FakeAgent) -> None:
    """Nothing is known about them, and this is cached."""
    agent.answers["names"] = answer
    with arm() as armed:
        assert armed.method(1) is UNKNOWN_METHOD
        assert isinstance(armed.ended, RbtraceError)
        assert not armed.disarm()


def test_names_that_nobody_needs_yet(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are requested now and then, as the process may be killed."""
    a = {"index": 1, "kind": 1, "owner": "A", "name": "a"}
    b = {"index": 2, "kind": 1, "owner": "A", "name": "b"}
    agent.answers["names"] = names({"index": 0, "kind": 0}, a, b)
    with arm() as armed:
        monkeypatch.setattr(arming, "LEARN_SECONDS", 3600)
        armed.keep_learning()
        assert agent.asked[-1]["command"] == "clock"
        monkeypatch.setattr(arming, "LEARN_SECONDS", 0)
        armed.keep_learning()
        armed.keep_learning()
        agent.hang_up()
        armed.listen()
        armed.keep_learning()
        assert (armed.method(1).name, armed.method(2).name) == ("a", "b")
        assert [each["command"] for each in agent.asked].count("names") == 1


def test_names_that_come_slowly(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half of the time, the rest is left for the next request."""
    a = {"index": 1, "kind": 1, "owner": "A", "name": "a"}
    agent.answers["names"] = names({"index": 0, "kind": 0}, a)
    with arm() as armed:
        monkeypatch.setattr(arming, "NAMES_AT_ONCE", 2)
        clock = SimpleNamespace(monotonic=count(0, 6).__next__)
        monkeypatch.setattr(arming, "time", clock)
        assert armed.method(2) is UNKNOWN_METHOD
        assert [each["command"] for each in agent.asked].count("names") == 1
        assert (armed.method(1).name, armed.ended) == ("a", None)


def test_names_out_of_order(agent: FakeAgent) -> None:
    agent.answers["names"] = names({"index": 5, "kind": 1}, {"index": -1, "kind": 1})
    with arm() as armed:
        assert armed.method(5) is UNKNOWN_METHOD
        assert armed.ended is None


def test_more_names_than_there_is_room_for(agent: FakeAgent) -> None:
    many = ({"index": n, "kind": 1, "name": "a"} for n in range(100))
    agent.answers["names"] = names(*many)
    with arm() as armed:
        assert armed.method(15).name == "a"
        assert armed.method(16) is UNKNOWN_METHOD


def test_the_end_of_the_process(agent: FakeAgent) -> None:
    """It says goodbye with the names, and its memory can still be read."""
    process = Process()
    with arm(process=process) as armed:
        known = names({"index": 0, "kind": 0}, {"index": 1, "kind": 1, "name": "a"})
        agent.say(EVENT, {"event": "exit", **known}, 0, [])
        armed.listen()
        assert armed.ended is None
        process.is_alive = False
        agent.hang_up()
        armed.listen()
        assert isinstance(armed.ended, NoSuchTarget)
        assert armed.method(1).name == "a"
        assert armed.counters().methods == 3


def test_it_hangs_up_while_armed(agent: FakeAgent) -> None:
    agent.answers["clock"] = None
    with arm() as armed:
        assert isinstance(armed.ended, BrokenAgent)
        assert armed.scale.duration(10) == 5


def test_events_without_end(agent: FakeAgent) -> None:
    with arm() as armed:
        for _ in range(50):
            agent.say(EVENT, {"event": "more"}, 0, [])
        armed.learn()
        assert isinstance(armed.ended, BrokenAgent)
