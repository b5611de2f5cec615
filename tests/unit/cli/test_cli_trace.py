"""``trace`` where events come without end."""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rbtrace_py.cli.common.output import Output
from rbtrace_py.cli.trace import _Printing
from rbtrace_py.session.drive import drive
from rbtrace_py.session.limits import Limits

DONE = "the end"


class Endless:
    """A session in which one event follows the other until it is finished."""

    targets = SimpleNamespace(command=None, pids=(1,))
    words = ("event",)
    is_over = False

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._is_finished = False

    def events(self, seconds: float) -> Iterator[object]:
        if self._is_finished:
            yield DONE
        while not self._is_finished:
            yield next(self._numbers)

    def refresh(self) -> None:
        """Do nothing."""

    def finish(self) -> None:
        self._is_finished = True


def test_it_ends_in_time_though_more_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that are pending at the end are printed, each once."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    text = io.StringIO()
    printing = _Printing(Endless(), None, Output(text), str)  # type: ignore[arg-type]
    began = time.monotonic()
    drive(printing, Limits(duration=0.2))
    assert time.monotonic() >= began + 0.2
    *numbers, last = text.getvalue().splitlines()
    assert last == DONE
    assert numbers == [str(number) for number in range(len(numbers))]
    assert printing.seen == len(numbers) + 1
