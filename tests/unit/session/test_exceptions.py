"""Exceptions as a session: fetched events that were not shown yet come next time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import closing
from typing import cast

from rbtrace_py.session.inside.agent_task import AgentTask
from rbtrace_py.session.methods.exceptions import ExceptionOptions, Exceptions
from rbtrace_py.session.targets.targets import Targets


class Fetched:
    """A task whose answers arrived all at once."""

    is_over = True
    ended = None

    def __init__(self, pid: int, messages: Sequence[str]) -> None:
        self.pid = pid
        self._messages = messages

    def fetch(self, seconds: float) -> list[list[bytes]]:
        taken, self._messages = self._messages, ()
        return [
            [b"1", b"2", b"0", b"Error", text.encode(), b"/a.rb", b"7", b"work"]
            for text in taken
        ]

    def finish(self) -> list[list[bytes]]:
        return []

    def close(self) -> None: ...


def test_exceptions_that_were_not_taken_are_yielded_next_time() -> None:
    with closing(Targets.from_pids([os.getpid()])) as targets:
        (process,) = targets.chosen()
        session = Exceptions(targets, ExceptionOptions())
        messages = [f"number {number}" for number in range(10)]
        task = cast(AgentTask, Fetched(process.pid, messages))
        session._add(process, task, held=True)
        seen = list(itertools.islice(session.events(0.0), 3))
        seen += itertools.islice(session.events(0.0), 3)
        seen += session.events(0.0)
    assert [event.values[1] for event in seen] == messages
