"""Names of threads: each process has its own, even if thread numbers are equal."""

from __future__ import annotations

from typing import cast

import pytest

from rbtrace_py.agent.arming import Armed
from rbtrace_py.errors import RbtraceError
from rbtrace_py.session.methods import thread_names
from rbtrace_py.session.methods.thread_names import ThreadNames


class Made:
    """A fake armed agent."""

    def __init__(self, **names: int) -> None:
        self.found = {tid: name for name, tid in names.items()}
        self.ended: RbtraceError | None = None

    def threads(self) -> dict[int, str]:
        return self.found


def armed(made: Made) -> Armed:
    return cast(Armed, made)


def test_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_names, "_ASK_SECONDS", 0)
    one, two = Made(web=1, puma=70), Made(job=70)
    names = ThreadNames()
    known = names.known
    names.learn(4, armed(one))
    names.learn(5, armed(two))
    assert known == {(4, 1): "web", (4, 70): "puma", (5, 70): "job"}
    one.found[71] = two.found[71] = "late"
    two.ended = RbtraceError("ended")
    names.learn_again([(4, armed(one)), (5, armed(two))])
    # The names of ended threads are not requested.
    assert {thread for thread in known if thread[1] == 71} == {(4, 71)}


def test_agents_are_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_names, "_ASK_SECONDS", 3600)
    made, names = Made(web=1), ThreadNames()
    names.learn_again([(4, armed(made))])
    made.found[2] = "late"
    names.learn_again([(4, armed(made))])
    assert names.known == {(4, 1): "web"}


def test_threads_that_came_and_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_names, "_MOST_ENDED", 3)
    names = ThreadNames()
    for tid in range(10):
        names.learn(4, armed(Made(main=1, worker=10 + tid)))
        assert {(4, 1), (4, 10 + tid)} <= names.known.keys()
    assert len(names.known) <= 5
