"""A span's duration as an operand, which may be unknown."""

from __future__ import annotations

import json

import pytest

from commands import answer, by_key

INTEGER = 1
SPAN_END = [["duration_ns", INTEGER, 1], ["outcome", INTEGER, 2], ["id", INTEGER, 0]]
DURATIONS = {5_000_000: 4, 7: 3, -1: 2}


@pytest.fixture
def crafted(craft):
    target = craft()
    target.define("work__end", SPAN_END, 2)
    target.define("plain", [["duration_ns", INTEGER, 0]])
    return target


def fire(target):
    """Fire 9 spans, 2 of which began before tracing, and as many events with the
    same numbers."""
    for duration, times in DURATIONS.items():
        for name, values in (("work__end", [duration, 0, 1]), ("plain", [duration])):
            target.fire(name, *values, times=times)


def test_values(crafted, trace):
    tracer = trace("values", crafted.pid, "work", "duration_ns", "--json")
    shown = trace("values", crafted.pid, "work", "duration_ns")
    fire(crafted)
    document = answer(tracer)
    (group,) = document["groups"]
    assert (group["count"], group["total"]) == (7, 20_000_021)
    assert group["min"] == 7
    assert document["counters"]["running_at_attach"] == 2
    assert "nil" not in document["counters"]
    assert (document["operand"], document["unit"]) == ("duration_ns", "ns")
    out, _, code = shown.finish()
    assert code == 0
    assert out.startswith("made:work__end duration_ns  ")
    assert "5.00 ms" in out
    assert "20.0 ms" in out
    assert "2 were running when tracing began" in out


def test_values_of_nanoseconds_that_are_not_spans(crafted, trace):
    """The name marks the unit. Every number is a value, and -1 does not mean
    unknown."""
    tracer = trace("values", crafted.pid, "plain", "duration_ns", "--json")
    fire(crafted)
    document = answer(tracer)
    (group,) = document["groups"]
    assert (group["count"], group["total"]) == (9, 20_000_019)
    assert (document["operand"], document["unit"]) == ("duration_ns", "ns")


@pytest.mark.parametrize(
    ("probe", "expected"),
    [("work", {5_000_000: 4, 7: 3, None: 2}), ("plain", DURATIONS)],
)
def test_as_a_key(crafted, trace, probe, expected):
    tracer = trace("count", crafted.pid, probe, "--by", "duration_ns", "--json")
    fire(crafted)
    assert by_key(answer(tracer)) == expected


@pytest.mark.parametrize("command", ["count", "trace"])
@pytest.mark.parametrize(
    ("expression", "spans", "plain"),
    [
        ("duration_ns < 1ms", 3, 5),
        ("duration_ns == nil", 2, 0),
        ("duration_ns != nil", 7, 9),
        ("duration_ns == -1", 0, 2),
        ("not duration_ns >= 5ms", 5, 5),
    ],
)
def test_in_a_filter(crafted, trace, command, expression, spans, plain):
    words = ["work", "plain", "--filter", expression, "--json"]
    tracer = trace(command, crafted.pid, *words)
    fire(crafted)
    out, err, code = tracer.finish()
    assert code == 0, err
    documents = [json.loads(line) for line in out.splitlines()]
    assert documents[-1]["count"] == spans + plain
    assert documents[-1]["counters"]["filtered"] == 18 - spans - plain
    if command == "trace" and expression == "duration_ns == nil":
        told = [document["arguments"]["duration_ns"] for document in documents[:-1]]
        assert told == [-1, -1]


def test_latency(crafted, trace):
    """With the filter, spans of unknown duration count as filtered, not as running."""
    words = ["work", "--filter", "duration_ns != nil", "--json"]
    tracer = trace("latency", crafted.pid, *words)
    plain = trace("latency", crafted.pid, "work", "--json")
    fire(crafted)
    document = answer(tracer)
    counters = document["counters"]
    assert document["count"] == 7
    assert (counters["filtered"], counters["running_at_attach"]) == (2, 0)
    document = answer(plain)
    assert document["count"] == 7
    assert document["counters"]["running_at_attach"] == 2
