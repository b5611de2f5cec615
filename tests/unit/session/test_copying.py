"""Memory that a copy of a process may take, and the warning about it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rbtrace_py.session.inside import copy_cost as module
from rbtrace_py.session.inside.copy_cost import NoRoom, check_room, copy_cost
from rbtrace_py.session.targets.confirmation import NotConfirmed

STATUS = b"Name:\truby\nVmPTE:\t   1024 kB\nVmSwap:\t  2048 kB\nRssAnon:\t  98304 kB\n"
MIB = 1 << 20
PROCESS: Any = SimpleNamespace(pid=7, read=lambda name: STATUS)
MOST, LEAST = 103 * MIB, 5 * MIB


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_(free: int | None, ends_together: bool = False) -> None:
        monkeypatch.setattr(module, "memory_room", lambda process: free)
        monkeypatch.setattr(module, "ends_together", lambda process: ends_together)

    return set_


def check(collects: bool = False, accepts: bool = False) -> str:
    """Return the warning or the refusal."""
    said: list[str] = []
    try:
        check_room(PROCESS, collects, lambda text: accepts, said.append)
    except (NoRoom, NotConfirmed) as error:
        said.append(f"{error}; {error.hint}")
    assert said[0].startswith("a copy of process 7 writes the dump")
    assert "up to 103 MiB" in said[0]
    return said[-1]


def test_the_cost(room: Any) -> None:
    room(1)
    cost = copy_cost(PROCESS)
    assert (cost.least, cost.most, cost.room) == (LEAST, MOST, 1)


@pytest.mark.parametrize("free", [None, MOST, 1 << 40])
@pytest.mark.parametrize("collects", [False, True])
def test_there_is_room(free: int | None, collects: bool, room: Any) -> None:
    room(free, ends_together=True)
    assert "writes the dump" in check(collects)


def test_there_may_be_room(room: Any) -> None:
    room(MOST - 1)
    assert "may not fit: 103 MiB are free for it; Raise the limit" in check()
    assert "writes the dump" in check(accepts=True)
    room(LEAST)
    assert "writes the dump" in check(accepts=True)
    assert "without --gc it takes less" in check(collects=True)
    assert "writes the dump" in check(collects=True, accepts=True)


@pytest.mark.parametrize("accepts", [False, True])
def test_there_is_none(accepts: bool, room: Any) -> None:
    room(LEAST - 1)
    text = check(accepts=accepts)
    assert "does not fit: it takes at least 5 MiB, and 5 MiB are free" in text
    room(MOST - 1, ends_together=True)
    assert "memory.oom.group" in check(accepts=accepts)
