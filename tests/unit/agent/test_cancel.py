"""A canceled request: the frames that the agent gets, and their order."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rbtrace_py.agent import client
from rbtrace_py.agent.client import Agent, AgentError
from rbtrace_py.agent.protocol import Map, decode_map, encode
from rbtrace_py.linux.process import Process

REQUEST, ERROR, REPLY, CANCEL = 1, 4, 3, 6


class Listener:
    """A server that answers hello and records the frames. It obeys a CANCEL."""

    def __init__(self) -> None:
        self.ours, self._its = socket.socketpair()
        self.got: list[tuple[int, int, str | None]] = []
        self.on_request: Any = lambda: None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while head := self._its.recv(12, socket.MSG_WAITALL):
            length, kind, _, _, number = client.protocol._HEAD.unpack(head)
            body = self._its.recv(length, socket.MSG_WAITALL) if length else b""
            command = decode_map(body)["command"] if body else None
            if command in ("hello", "prove"):
                self._say(REPLY, {"version": 1}, number)
                continue
            self.got.append((kind, number, command))
            if kind == CANCEL:
                reply = {"code": "cancelled", "message": "cancelled"}
                self._say(ERROR, reply, number)
            else:
                self.on_request()

    def _say(self, kind: int, map_: Map, number: int) -> None:
        body = encode(map_)
        self._its.sendall(client.protocol._HEAD.pack(len(body), kind, 0, 0, number))
        self._its.sendall(body)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    made = Listener()
    monkeypatch.setattr(client, "connect", lambda *_: made.ours)
    yield made
    made.ours.close()
    made.thread.join(60)


def test_while_it_runs(listener: Listener) -> None:
    with Process(os.getpid()) as process, Agent(process) as agent:
        listener.on_request = agent.cancel
        with pytest.raises(AgentError) as caught:
            agent.call("eval")
    assert caught.value.code == "cancelled"
    assert listener.got == [(REQUEST, 3, "eval"), (CANCEL, 3, None)]


def test_while_it_is_sent(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not come between the frames of the request."""
    with Process(os.getpid()) as process, Agent(process) as agent:
        send = agent._send

        def interrupted(data: bytes, deadline: float) -> None:
            agent.cancel()
            assert listener.got == []
            send(data, deadline)

        monkeypatch.setattr(agent, "_send", interrupted)
        with pytest.raises(AgentError):
            agent.call("eval")
    assert listener.got == [(REQUEST, 3, "eval"), (CANCEL, 3, None)]


def test_one_does_not_end_the_next(listener: Listener) -> None:
    with Process(os.getpid()) as process, Agent(process) as agent:
        listener.on_request = agent.cancel
        for number in (3, 4):
            with pytest.raises(AgentError):
                agent.call("eval")
            assert listener.got[-1] == (CANCEL, number, None)
