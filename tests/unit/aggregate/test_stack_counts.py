"""Stack counts, exactly."""

from __future__ import annotations

from itertools import count

import pytest

from rbtrace_py.aggregate import stacks
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import OTHER, Row, StackCounts
from rbtrace_py.aggregate.stacktree import StackTree
from rbtrace_py.errors import TOO_MUCH_LOST, loss_exit_code
from rbtrace_py.model.stacks import RubyThread, SampleFlags, ThreadState
from sample_makers import MAIN, OTHER_PROCESS, WORKER, frame, sample, shop


def weights(counts: StackCounts) -> dict[tuple[str, ...], int]:
    """Return weights by the names of the frames."""
    found: dict[tuple[str, ...], int] = {}
    for row in counts.rows():
        names = tuple(frame.name for frame in row.frames)
        found[names] = found.get(names, 0) + row.weight
    return found


def test_rows_are_by_value() -> None:
    counts = StackCounts().add_all(
        [
            sample("a", "b"),
            sample("a", "b", weight=3),
            sample("a", "b", state=ThreadState.SLEEPING),
            sample("a", "b", thread=WORKER),
            sample("a"),
        ]
    )
    ab = (frame("a"), frame("b"))
    assert sorted(counts.rows(), key=str) == sorted(
        [
            Row(MAIN, ThreadState.RUNNING, ab, 4),
            Row(MAIN, ThreadState.SLEEPING, ab, 1),
            Row(WORKER, ThreadState.RUNNING, ab, 1),
            Row(MAIN, ThreadState.RUNNING, ab[:1], 1),
        ],
        key=str,
    )
    assert counts.weight == 7
    assert len(counts) == 4


def test_threads_of_a_process_together() -> None:
    counts = StackCounts(by_thread=False).add_all(
        [sample("a"), sample("a", thread=WORKER), sample("a", thread=OTHER_PROCESS)]
    )
    assert [(row.thread.pid, row.weight) for row in counts.rows()] == [
        (4211, 2),
        (4300, 1),
    ]


def test_equal_threads_that_are_other_objects_are_one() -> None:
    counts = StackCounts()
    for _ in range(3):
        counts.add(sample("a", thread=RubyThread(1, 2, 3, "x")))
    assert len(counts) == 1


def test_memory_is_bounded_and_the_rest_is_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks, "_RECENT", 10)
    counts = StackCounts(max_rows=20)
    for number in range(1000):
        counts.add(sample("a", f"b{number}"))
    assert counts.weight == 1000
    assert counts.statistics.other == 960
    assert len(counts) == 41
    assert weights(counts)[(OTHER.name,)] == 960


def test_threads_are_forgotten_before_stacks() -> None:
    """A server with one thread per request loses the threads, not their stacks."""
    counts = StackCounts(max_rows=20)
    for number in range(1000):
        thread = RubyThread(1, number, number, "")
        counts.add(sample("a", f"b{number % 10}", thread=thread))
    assert len(counts) == 30
    assert weights(counts) == {("a", f"b{n}"): 100 for n in range(10)}
    assert counts.statistics.other == 0
    names = {row.thread.name for row in counts.rows()}
    assert names == {"", "(other)"}


def test_a_full_tree_still_counts_what_it_knows() -> None:
    counts = StackCounts(max_nodes=3)
    counts.add_all([sample("a", "b", "c"), sample("a", "d"), sample("a", "b")])
    assert weights(counts) == {
        ("a", "b", "c"): 1,
        (OTHER.name,): 1,
        ("a", "b"): 1,
    }


def test_frames_are_bounded_as_stacks_are() -> None:
    """A program that keeps creating code has new frames all the time."""
    tree = StackTree(max_nodes=3)
    assert tree.node([frame("a"), frame("b"), frame("c")]) == 3
    for number in range(100):
        assert tree.node([frame("a"), frame(f"eval {number}")]) is None
    assert tree.node([frame("a"), frame("b")]) == 2
    assert [one.name for one in tree.frames] == ["a", "b", "c"]


def test_threads_are_bounded() -> None:
    counts = StackCounts(max_threads=2)
    counts.add_all(sample("a", thread=RubyThread(1, n, n, "")) for n in range(50))
    rows = {row.thread.name: row.weight for row in counts.rows()}
    assert rows == {"": 1, "(other)": 48}
    assert counts.weight == 50


def test_recursion_counts_once_towards_the_total() -> None:
    counts = StackCounts().add_all(
        [
            sample("fib@f.rb:1", "fib@f.rb:2", "fib@f.rb:2"),
            sample("fib@f.rb:1", "c!Integer#+@f.rb:1", weight=2),
            sample("g@f.rb:1", "c!Integer#+@g.rb:1"),
        ]
    )
    assert [(s.frame.name, s.own, s.total) for s in counts.by_method()] == [
        ("Integer#+", 3, 3),
        ("fib", 1, 3),
        ("g", 0, 1),
    ]
    lines = [(s.frame.name, s.frame.line, s.own, s.total) for s in counts.by_line()]
    assert lines == [
        ("Integer#+", 1, 2, 2),
        ("Integer#+", 1, 1, 1),
        ("fib", 2, 1, 1),
        ("fib", 1, 0, 3),
        ("g", 1, 0, 1),
    ]


def test_minus_is_what_came_since() -> None:
    counts = StackCounts()
    counts.add_all([sample("a"), sample("b")])
    counts.statistics.failed = 2
    counts.statistics.ended_ns = 5
    before = counts.snapshot()
    counts.add_all([sample("b", weight=5), sample("c", flags=SampleFlags.TRIMMED)])
    counts.statistics.failed = 3
    counts.statistics.ended_ns = 9
    since = counts.minus(before)
    assert weights(since) == {("b",): 5, ("c",): 1}
    assert weights(before) == {("a",): 1, ("b",): 1}
    assert since.statistics == Statistics(
        started_ns=5, ended_ns=9, samples=2, trimmed=1, unclean=1, failed=1
    )


def test_merge() -> None:
    one = StackCounts().add_all(shop(5))
    two = StackCounts().add_all(shop(9))
    whole = StackCounts().add_all([*shop(5), *shop(9)])
    one.merge(two)
    assert weights(one) == weights(whole)
    assert one.statistics == whole.statistics


def test_where() -> None:
    counts = StackCounts().add_all(shop(4))
    mine = counts.where(lambda thread, state: thread.tid == 4211)
    assert {row.thread for row in mine.rows()} == {MAIN}
    assert mine.weight == 4


def test_statistics() -> None:
    counts = StackCounts(Statistics(rate=100)).add_all(shop(10))
    own = counts.statistics
    assert (own.samples, own.clean, own.trimmed, own.truncated) == (40, 25, 5, 10)
    own.started_ns, own.ended_ns, own.rounds, own.failed = 0, 2 * 10**9, 150, 10
    assert own.achieved_rate == 75
    codes = [loss_exit_code(own.samples, own.failed, most) for most in (20, 19.9)]
    assert codes == [0, TOO_MUCH_LOST]
    own.rounds = 318
    assert own.achieved_rate == 100


def test_reused_ids_of_freed_frames_do_not_mislead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rbtrace_py.aggregate.stacktree._MAX_IDENTITIES", 4)
    tree = StackTree()
    numbers = count()
    for _ in range(300):
        number = next(numbers) % 7
        node = tree.node((frame(f"f{number}"), frame("leaf")))
        assert node is not None
        assert tree.stack(node).frames == (frame(f"f{number}"), frame("leaf"))
    assert len(tree.frames) == 8
    assert len(tree) == 14
