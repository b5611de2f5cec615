"""Which process is meant, of those with the same words in their command lines."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from processes import Target
from rbtrace_py.session.targets.choosing import choices

Start = Callable[..., Target]


def test_rubies_go_first(start: Start) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    assert not choices(marker).candidates
    shell = Target("sh", "-c", f"echo ready; read line; : {marker}")
    try:
        choice = choices(marker)
        assert [one.pid for one in choice.candidates] == [shell.pid]
        assert (choice.are_ruby, choice.passed_over) == (False, 0)
        pids = sorted(start("turning.rb", "0", marker).pid for _ in range(2))
        choice = choices(marker)
        assert [one.pid for one in choice.candidates] == pids
        assert (choice.are_ruby, choice.passed_over) == (True, 1)
    finally:
        shell.close()


def test_what_started_another_that_matches_is_passed_over() -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    inner = f"echo ready $$; read line; : {marker}"
    outer = Target("sh", "-c", f"sh -c '{inner}'; :")
    try:
        choice = choices(marker)
        pid = int(outer.ready.split()[1])
        assert [one.pid for one in choice.candidates] == [pid] != [outer.pid]
        assert (choice.are_ruby, choice.passed_over) == (False, 1)
    finally:
        outer.close()
