"""Choice of a process among several with the same words in their command lines."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from processes import Target
from rbtrace_py.session.targets.choosing import choices, families

Start = Callable[..., Target]


def test_rubies_go_first(start: Start) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    assert not choices(marker).candidates
    shell = Target("sh", "-c", f"echo ready; read line; : {marker}")
    try:
        choice = choices(marker)
        assert [one.pid for one in choice.candidates] == [shell.pid]
        assert (choice.are_ruby, choice.passed_over) == (False, 0)
        pids = sorted(start("stacks/turning.rb", "0", marker).pid for _ in range(2))
        choice = choices(marker)
        assert [one.pid for one in choice.candidates] == pids
        assert (choice.are_ruby, choice.passed_over) == (True, 1)
    finally:
        shell.close()


def test_a_parent_of_another_match_is_skipped() -> None:
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


CLUSTER = """
$stdout.sync = true
workers = 2.times.map { fork { $0 = ARGV[0]; $stdin.read } }
$0 = ARGV[1]
puts "ready #{$$} #{workers.join(" ")}"
$stdin.gets
"""


def test_a_cluster_is_one_choice_with_its_workers() -> None:
    """The pattern matches puma's master too, or only its workers."""
    marker = f"marker-{uuid.uuid4().hex}"
    titles = (f"{marker}: cluster worker", f"{marker} 5.6.5 [app]")
    target = Target("ruby", "-e", CLUSTER, *titles)
    try:
        master, *workers = map(int, target.ready.split()[1:])
        for regex, expected in (
            (marker, [master]),
            (f"^{marker} [0-9]", [master]),
            (f"{marker}.*cluster", sorted(workers)),
        ):
            groups = families(choices(regex).candidates)
            assert [[one.pid for one in group] for group in groups] == [expected]
    finally:
        target.close()


def test_programs_side_by_side_are_several_choices(start: Start) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    pids = sorted(start("stacks/turning.rb", "0", marker).pid for _ in range(2))
    groups = families(choices(marker).candidates)
    assert [[one.pid for one in group] for group in groups] == [[pid] for pid in pids]
