"""Losses are counted, and other tools can read every output."""

from __future__ import annotations

import json
import random
import signal

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from commands import answer, by_key, run
from processes import await_state

INTEGER, STRING, FLOAT, BOOL = 1, 2, 4, 5
SPAN_END = [["duration_ns", INTEGER, 1], ["outcome", INTEGER, 2], ["id", INTEGER, 0]]
HOUR = 3_600_000_000_000


def test_every_value_out_of_place_is_counted(crafted, trace):
    crafted.define("work__end", SPAN_END, role=2)
    tracer = trace("latency", crafted.pid, "work", "--json")
    crafted.fire("work__end", 5, 0, 1, times=10)
    crafted.fire("work__end", -1, 0, 1, times=2)
    crafted.fire("work__end", -500, 0, 1, times=3)
    crafted.fire("work__end", HOUR, 0, 1)
    crafted.fire("work__end", HOUR + 1, 0, 1, times=4)
    crafted.fire("work__end", 7, 1, 1, times=5)
    crafted.fire("work__end", 7, 2, 1, times=6)
    document = answer(tracer)
    assert document["count"] == 10 + 1 + 5 + 6
    counters = document["counters"]
    expected = {
        "running_at_attach": 2,
        "negative": 3,
        "beyond_range": 4,
        "raised": 5,
        "thrown": 6,
    }
    assert {name: counters[name] for name in expected} == expected


def test_percentiles_are_those_of_hdrhistogram(crafted, trace, tmp_path):
    """They agree to the last digit with HdrHistogram fed with all values, even in
    the log."""
    chance = random.Random(5)
    values = [int(10 ** chance.uniform(0, 12.5)) for _ in range(300)]
    reference = HdrHistogram(1, HOUR, 3)
    crafted.define("work__end", SPAN_END, role=2)
    log = tmp_path / "out.hlog"
    tracer = trace("latency", crafted.pid, "work", "--json", "--hlog", log)
    for value in values:
        crafted.fire("work__end", value, 0, 1)
        reference.record_value(value)
    document = answer(tracer)
    (group,) = document["groups"]
    assert group["count"] == len(values)
    assert group["total"] == sum(values)
    for name, value in group["percentiles"].items():
        assert value == reference.get_value_at_percentile(float(name))
    reader = HistogramLogReader(str(log), HdrHistogram(1, HOUR, 3))
    logged = reader.get_next_interval_histogram()
    assert logged.get_total_count() == len(values)
    for percentile in (50, 90, 99, 99.9, 100):
        wanted = reference.get_value_at_percentile(percentile)
        assert logged.get_value_at_percentile(percentile) == wanted
    assert reader.get_next_interval_histogram() is None


def test_intervals_add_up_to_the_whole(crafted, trace, tmp_path):
    crafted.define("work__end", SPAN_END, role=2)
    log = tmp_path / "out.hlog"
    words = ["work", "--by", "id", "--interval", "0.1", "--json", "--hlog", log]
    tracer = trace("latency", crafted.pid, *words)
    for number in range(200):
        crafted.fire("work__end", number + 1, 0, number % 3)
    out, err, code = tracer.finish()
    assert code == 0, err
    documents = [json.loads(line) for line in out.splitlines()]
    totals: dict[int, int] = {}
    for document in documents:
        for group in document["groups"]:
            totals[group["key"]] = totals.get(group["key"], 0) + group["count"]
    assert totals == {0: 67, 1: 67, 2: 66}
    reader = HistogramLogReader(str(log), HdrHistogram(1, HOUR, 3))
    logged = 0
    while (histogram := reader.get_next_interval_histogram()) is not None:
        logged += histogram.get_total_count()
    assert logged == 200


def test_lost_events_are_counted(crafted, trace):
    """The buffer fills while the tracer is stopped. Seen and lost events add up."""
    crafted.define("event", [["id", INTEGER, 0], ["text", STRING, 0]])
    tracer = trace("trace", crafted.pid, "event", "--json")
    tracer.process.send_signal(signal.SIGSTOP)
    await_state(tracer.process.pid, "T")
    crafted.fire("event", 1, "x", times=40_000)
    tracer.process.send_signal(signal.SIGCONT)
    out, _, code = tracer.finish()
    lines = [json.loads(line) for line in out.splitlines()]
    end = lines[-1]
    assert end["schema"] == "rbtrace-py/trace-end"
    assert end["count"] == len(lines) - 1
    assert end["count"] + end["counters"]["lost"] == 40_000
    assert end["counters"]["lost"] > 0
    assert code == (5 if end["counters"]["lost"] > end["count"] else 0)


def test_texts_that_lie(crafted, trace):
    """Invalid pointers, escape sequences, and bytes that are not valid text."""
    crafted.define("event", [["text", STRING, 0]])
    tracer = trace("trace", crafted.pid, "event", "--string-size", "16")
    counter = trace("count", crafted.pid, "event", "--by", "text", "--json")
    for text in ("plain", "\x1b[31mred\x07", "caf\xe9", "", "x" * 15, "y" * 16):
        crafted.fire("event", text)
    crafted.fire("event", 0)
    crafted.fire("event", 8)
    crafted.fire("event", 2**64 - 1)
    out, err, code = tracer.finish()
    assert code == 0, err
    shown = [line.split("text: ", 1)[1] for line in out.splitlines()]
    assert shown[0] == '"plain"'
    assert "\x1b" not in out
    assert "\x07" not in out
    assert shown[3] == '""'
    assert shown[4] == f'"{"x" * 15}"'
    assert shown[5] == f'"{"y" * 15}"…'
    assert shown[6] == "nil"
    assert len(set(shown[7:])) == 1
    assert "unreadable" in shown[7]
    counts = by_key(answer(counter))
    assert counts["plain"] == counts[""] == counts[None] == 1
    assert counts["(unreadable)"] == 2


def test_keys_as_long_as_can_be_and_longer(crafted, trace):
    crafted.define("event", [["text", STRING, 0]])
    tracer = trace("count", crafted.pid, "event", "--by", "text", "--json")
    whole = (62, 63, 64, 65, 126, 200, 1007)
    for length in (*whole, 1008, 1009, 5000):
        crafted.fire("event", "k" * length)
    groups = {(g["key"], g["truncated"]): g["count"] for g in answer(tracer)["groups"]}
    assert groups == {
        **{("k" * length, False): 1 for length in whole},
        ("k" * 1008, True): 3,
    }


def test_long_keys_that_differ_late(crafted, trace):
    """They differ at byte 200, near byte 56, where the kernel's key ends, or at the
    last byte."""
    operands = [["id", INTEGER, 0], ["text", STRING, 0]]
    for name in ("begin", "event"):
        crafted.define(name, operands)
    words = ("--by", "text", "--json")
    tracers = [
        trace("count", crafted.pid, "event", *words),
        trace("values", crafted.pid, "event", "id", *words),
        trace("latency", crafted.pid, "begin..event", *words),
        trace("count", crafted.pid, "event", "--filter", 'text ^= "ss"', *words),
    ]
    expected = {}
    for place in (56, 64, 200, 1006):
        for number, letter in enumerate("abc", 1):
            expected["s" * place + letter] = number
    for text, number in expected.items():
        for _ in range(number):
            crafted.fire("begin", 0, "")
            crafted.fire("event", 0, text)
    for tracer in tracers:
        document = answer(tracer)
        assert by_key(document) == expected
        assert not any(group["truncated"] for group in document["groups"])


def test_nil_of_every_type(crafted, trace):
    operands = [["i", INTEGER, 0], ["s", STRING, 0], ["f", FLOAT, 0], ["b", BOOL, 0]]
    nils = [-(2**63), 0, 0x7FF8726274726163, 2]
    crafted.define("event", operands)
    tracer = trace("trace", crafted.pid, "event", "--json")
    values = trace("values", crafted.pid, "event", "f", "--json")
    crafted.fire("event", *nils)
    crafted.fire("event", -1, "", 0x3FF8000000000000, 0)
    events = [json.loads(line) for line in tracer.finish()[0].splitlines()[:-1]]
    assert [event["arguments"] for event in events] == [
        {"i": None, "s": None, "f": None, "b": None},
        {"i": -1, "s": "", "f": 1.5, "b": False},
    ]
    document = answer(values)
    assert (document["count"], document["counters"]["nil"]) == (1, 1)


def test_twelve_operands_are_all_read(crafted, trace):
    operands = [[f"o{n}", INTEGER, 0] for n in range(12)]
    crafted.define("event", operands)
    words = ["event", "--json", "--filter", "o11 == 111 and o0 == 100"]
    tracer = trace("trace", crafted.pid, *words)
    crafted.fire("event", *range(100, 112))
    crafted.fire("event", *range(200, 212))
    lines = [json.loads(line) for line in tracer.finish()[0].splitlines()]
    assert lines[0]["arguments"] == {f"o{n}": 100 + n for n in range(12)}
    assert len(lines) == 2


def test_a_filter_of_many_operands(crafted, trace):
    """A hit can read 16 operands; ``trace`` uses some of them for operands that it
    prints."""
    names = [f"n{number}" for number in range(12)]
    crafted.define("event", [[name, INTEGER, 0] for name in names])
    twelve = " and ".join(f"{name} == {i}" for i, name in enumerate(names))
    four = " and ".join(f"{name} == {i}" for i, name in enumerate(names[:4]))
    tracers = [
        trace("trace", crafted.pid, "event", "--filter", four, "--json"),
        trace("count", crafted.pid, "event", "--filter", twelve, "--json"),
    ]
    crafted.fire("event", *range(12), times=3)
    crafted.fire("event", *range(1, 13), times=2)
    for tracer in tracers:
        document = json.loads(tracer.finish()[0].splitlines()[-1])
        assert (document["count"], document["counters"]["filtered"]) == (3, 2)
    _, err, code = run("trace", crafted.pid, "event", "--filter", f"{four} and n4 == 4")
    assert code == 2
    assert "the filter uses 5 arguments, but there is space for 4" in err
    assert "12 others are read" in err


def test_a_filter_and_a_key_of_all_operands(crafted, trace):
    """A span of ten arguments has the maximum number of operands and a few more."""
    names = [f"n{number}" for number in range(10)]
    operands = [*SPAN_END[:2], *([name, INTEGER, 0] for name in names)]
    crafted.define("work__end", operands, role=2)
    ten = " and ".join(f"{name} == {i}" for i, name in enumerate(names))
    every = f"{ten} and outcome == 0 and duration_ns == 7 and pid > 0"
    words = ["latency", crafted.pid, "work", "--by", "n3", "--json"]
    tracer = trace(*words, "--filter", every)
    crafted.fire("work__end", 7, 0, *range(10), times=3)
    assert by_key(answer(tracer)) == {3: 3}
    _, err, code = run(*words, "--filter", f"{every} and tid > 0")
    assert code == 2
    assert "the filter uses 14 arguments, but only 13 fit" in err


def test_a_template(crafted, trace):
    crafted.define("event", [["id", INTEGER, 0], ["text", STRING, 0]])
    words = ["event", "--template", "{{{probe}}} {id}/{text}", "--count", "2"]
    tracer = trace("trace", crafted.pid, *words)
    crafted.fire("event", 7, "seven")
    crafted.fire("event", 8, "eight")
    out, _, code = tracer.result()
    assert (out, code) == ('{made:event} 7/"seven"\n{made:event} 8/"eight"\n', 0)


def test_pairs_in_threads_that_come_and_go(crafted, trace):
    """A thread does not inherit open events of an ended thread with the same number."""
    crafted.define("open", [])
    crafted.define("close", [])
    tracer = trace("latency", crafted.pid, "open..close", "--json")
    crafted.step(json.dumps(["threads", ["open", "open", "close"], 300]))
    document = answer(tracer)
    assert document["count"] == 300
    assert document["counters"]["open_begins"] == 0
    assert document["counters"]["no_begin"] == 0


def test_begins_without_an_end_do_not_affect_others(crafted, trace):
    crafted.define("open", [])
    crafted.define("close", [])
    tracer = trace("latency", crafted.pid, "open..close", "--json")
    for _ in range(300):
        crafted.fire("open", times=2)
        crafted.fire("close")
    document = answer(tracer)
    assert document["count"] == 300
    assert document["counters"]["open_begins"] == 300
    assert document["counters"]["too_deep"] == 0


def test_pairs_nested_deeper_than_is_kept(crafted, trace):
    """The innermost 128 are timed, and the others counted. Afterwards, all is as
    before."""
    crafted.define("open", [])
    crafted.define("close", [])
    tracer = trace("latency", crafted.pid, "open..close", "--json")
    crafted.fire("open", times=200)
    crafted.fire("close", times=201)
    crafted.fire("open", times=3)
    crafted.fire("close", times=3)
    out, _, code = tracer.finish()
    document = json.loads(out)
    assert document["count"] == 128 + 3
    assert document["counters"]["too_deep"] == 72
    assert document["counters"]["no_begin"] == 1
    assert code == 0
