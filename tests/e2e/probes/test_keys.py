"""The limit on keys, with one or more targets. One row holds the rest."""

from __future__ import annotations

import pytest

from commands import answer

INTEGER, STRING = 1, 2
SPAN_END = [["duration_ns", INTEGER, 1], ["outcome", INTEGER, 2], ["id", INTEGER, 0]]
KEYS = 5


def kept_and_rest(document):
    kept = [group for group in document["groups"] if not group["other"]]
    rest = [group for group in document["groups"] if group["other"]]
    return kept, rest


def test_the_limit_on_keys_covers_several_processes(craft, trace):
    """Of 23 keys in two processes, the first 5 are kept."""
    targets = [craft(), craft()]
    for target in targets:
        target.define("event", [["id", INTEGER, 0]])
    pids = ",".join(str(target.pid) for target in targets)
    words = ["event", "--by", "id", "--max-keys", KEYS, "--json"]
    tracer = trace("count", pids, *words)
    for number in range(23):
        targets[number % 2].fire("event", number, times=number + 1)
    document = answer(tracer)
    kept, rest = kept_and_rest(document)
    assert {group["key"]: group["count"] for group in kept} == {
        number: number + 1 for number in range(KEYS)
    }
    assert [(group["key"], group["count"]) for group in rest] == [
        (None, sum(range(KEYS + 1, 24)))
    ]
    assert document["counters"]["no_room"] == 0


@pytest.mark.parametrize("kind", [INTEGER, STRING])
def test_the_limit_on_keys_for_values_in_several_processes(craft, trace, kind):
    """The sums in ``(other)`` are exact for each series."""
    targets = [craft(), craft()]
    for target in targets:
        for name in ("one", "two"):
            target.define(name, [["id", kind, 0], ["size", INTEGER, 0]])
    pids = ",".join(str(target.pid) for target in targets)
    words = ["one", "two", "size", "--by", "id", "--max-keys", KEYS, "--json"]
    tracer = trace("values", pids, *words)
    expected = {"made:one": 0, "made:two": 0}
    for number in range(30):
        name = ("one", "two")[number % 2]
        key = number if kind == INTEGER else str(number)
        targets[number // 2 % 2].fire(name, key, 1000 + number)
        expected[f"made:{name}"] += 1000 + number if number >= KEYS else 0
    document = answer(tracer)
    kept, rest = kept_and_rest(document)
    assert [group["count"] for group in kept] == [1] * KEYS
    assert {group["series"]: group["total"] for group in rest} == expected
    assert sum(group["count"] for group in rest) == 30 - KEYS
    assert sum(bucket[2] for group in rest for bucket in group["buckets"]) == 25
    assert document["counters"]["no_room"] == 0


def test_the_limit_on_keys_covers_children(start, trace):
    target = start("probes/forking.rb")
    words = ["child", "--by", "n", "--subprocesses", "--max-keys", KEYS, "--json"]
    tracer = trace("count", target.pid, *words)
    target.step("23")
    document = answer(tracer)
    kept, rest = kept_and_rest(document)
    assert {group["key"]: group["count"] for group in kept} == dict.fromkeys(
        range(KEYS), 1
    )
    assert [group["count"] for group in rest] == [23 - KEYS]


def test_spans_and_pairs_share_the_limit_on_keys(craft, trace):
    """Two BPF programs share one limit on keys."""
    target = craft()
    target.define("work__end", SPAN_END, role=2)
    for name in ("begin", "end"):
        target.define(name, [["id", INTEGER, 0]])
    words = ["work", "begin..end", "--by", "id", "--max-keys", KEYS, "--json"]
    tracer = trace("latency", target.pid, *words)
    for number in range(8):
        target.fire("work__end", 10, 0, number)
        target.fire("begin", number)
        target.fire("end", number)
    document = answer(tracer)
    kept, rest = kept_and_rest(document)
    assert {(group["series"], group["key"], group["count"]) for group in kept} == {
        *(("made:work", number, 1) for number in range(3)),
        *(("begin..end", number, 1) for number in range(2)),
    }
    assert {group["series"]: group["count"] for group in rest} == {
        "made:work": 5,
        "begin..end": 6,
    }


def test_late_probes_share_the_limit_on_keys(start, trace):
    """A series that starts after all keys are taken also has its row."""
    target = start("probes/late.rb")
    words = ["late:*", "--by", "n", "--max-keys", 2, "--json"]
    tracer = trace("count", target.pid, *words)
    target.step("fire first 7")
    target.step("define second")
    while target.step("enabled") != "done [true, true]":
        pass
    target.step("fire second 4")
    kept, rest = kept_and_rest(answer(tracer))
    assert {group["key"]: group["count"] for group in kept} == {0: 1, 1: 1}
    assert {group["series"]: group["count"] for group in rest} == {
        "late:first": 5,
        "late:second": 4,
    }
