"""``trace`` of an endless stream of events."""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rbtrace_py.cli import trace
from rbtrace_py.cli.common.output import Output
from rbtrace_py.cli.common.stop import Stop
from rbtrace_py.session.event_session import EventSession
from rbtrace_py.session.limits import Limits

DONE = "the end"


class Endless(EventSession[object]):
    """A session in which one event follows the other until it is finished."""

    targets = SimpleNamespace(command=None, pids=(1,))
    words = ("event",)
    is_over = False

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._is_finished = self._is_drained = False

    def events(self, seconds: float) -> Iterator[object]:
        while not self._is_finished:
            yield next(self._numbers)

    def drain(self) -> Iterator[object]:
        assert self._is_finished
        if not self._is_drained:
            self._is_drained = True
            yield DONE

    def refresh(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        self._is_finished = True

    def result_counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


def test_it_ends_in_time_though_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that are pending at the end are printed, each once."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    text = io.StringIO()
    session: Any = Endless()
    began = time.monotonic()
    trace._print(session, Output(text), str, Limits(duration=0.2), Stop())
    assert time.monotonic() >= began + 0.2
    *numbers, last = text.getvalue().splitlines()
    assert last == DONE
    assert numbers == [str(number) for number in range(len(numbers))]
    assert session.seen == len(numbers) + 1
