"""A known workload gives exactly the known counts, whatever the command."""

from __future__ import annotations

import json

import pytest

from commands import COMMAND, Tracer, answer, by_key, if_ruby_has

KINDS = {
    "plain": 7,
    "outer": 2,
    "inner": 2,
    "recursive": 6,
    "raised": 3,
    "thrown": 2,
    "broken": 1,
}


@pytest.mark.parametrize("attach", ["multi", "perf"])
def test_latency_of_a_span_by_key(start, trace, attach):
    target = start("probes/workload.rb")
    env = {"RBTRACE_ATTACH": attach}
    tracer = trace("latency", target.pid, "work", "--by", "kind", "--json", env=env)
    target.step()
    document = answer(tracer)
    assert by_key(document) == KINDS
    counters = document["counters"]
    assert (counters["raised"], counters["thrown"]) == (3, 3)
    assert counters["kernel_missed"] == counters["unreadable"] == 0
    assert counters["running_at_attach"] == counters["no_room"] == 0


def test_latency_of_the_same_as_a_pair(start, trace):
    target = start("probes/workload.rb")
    words = ["pair_begin..pair_end", "--by", "kind", "--json"]
    tracer = trace("latency", target.pid, *words)
    target.step()
    target.step()
    document = answer(tracer)
    assert by_key(document) == {kind: 2 * count for kind, count in KINDS.items()}
    assert document["counters"]["no_begin"] == 0
    assert document["counters"]["open_begins"] == 0


def test_recursion_nests_in_time(start, trace):
    """An outer call takes at least as long as the call within it."""
    target = start("probes/workload.rb")
    words = ["load:work", "--by", "id", "--filter", 'kind == "recursive"', "--json"]
    tracer = trace("latency", target.pid, *words)
    target.step()
    document = answer(tracer)
    groups = {g["key"]: g["total"] for g in document["groups"]}
    assert document["filter"] == 'kind == "recursive"'
    assert sorted(groups) == list(range(9, 15))
    totals = [groups[key] for key in sorted(groups)]
    assert totals == sorted(totals, reverse=True)


def test_count_without_a_key(start, trace):
    target = start("probes/workload.rb")
    tracer = trace("count", target.pid, "load:*", "--json")
    target.step()
    document = answer(tracer)
    counts = {group["series"]: group["count"] for group in document["groups"]}
    assert counts == {
        "load:item": 23,
        "load:work__begin": 23,
        "load:work__end": 23,
        "load:pair_begin": 23,
        "load:pair_end": 23,
    }


@pytest.mark.parametrize("attach", ["multi", "perf"])
@pytest.mark.parametrize(
    ("words", "hits"),
    [
        (["latency", "work"], 23),
        (["latency", "pair_begin..pair_end"], 46),
        (["count", "load:*"], 5 * 23),
        (["values", "item", "id"], 23),
        (["trace", "item", "--filter", "id > 1000"], 23),
    ],
)
def test_each_ends_with_its_cost(start, trace, words, hits, attach):
    """Each hit counts, even one that a filter rejects."""
    target = start("probes/workload.rb")
    env = {"RBTRACE_ATTACH": attach}
    verb, *rest = words
    tracer = trace(verb, target.pid, *rest, "--json", env=env)
    target.step()
    out, err, code = tracer.finish()
    assert code == 0, err
    cost = json.loads(out.splitlines()[-1])["cost"]
    assert cost["hits"] == hits
    assert 0 < cost["ns"] < cost["elapsed_ns"]


def test_the_cost_where_intervals_are_shown(start, trace):
    target = start("probes/workload.rb")
    tracer = trace("count", target.pid, "load:item", "-i", "100")
    target.step()
    out, err, code = tracer.finish()
    assert code == 0, err
    assert "rbtrace-py: cost: 23 hits of probes at " in err
    assert "cost" not in out


def test_no_cost_where_the_kernel_does_not_measure(start, root):
    """It needs CAP_SYS_ADMIN."""
    target = start("probes/workload.rb")
    command = ("setpriv", "--bounding-set=-sys_admin", *COMMAND)
    words = ("count", str(target.pid), "load:item", "--json")
    tracer = Tracer(*words, command=command)
    target.step()
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    assert document["count"] == 23
    assert "cost" not in document


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("id > 10", 12),
        ('kind == "plain"', 7),
        ('id > 10 and kind == "plain"', 2),
        ("not (id > 10 or gift == true)", 5),
        ("price >= 2.5 and price < 5.0", 5),
        ('kind ^= "r"', 9),
        ("gift", 12),
    ],
)
def test_filters_run_in_the_kernel(start, trace, expression, expected):
    target = start("probes/workload.rb")
    tracer = trace("count", target.pid, "item", "--filter", expression, "--json")
    target.step()
    document = answer(tracer)
    assert sum(by_key(document).values()) == expected
    assert document["counters"]["filtered"] == 23 - expected


def test_max_keys_puts_the_rest_under_other(start, trace):
    target = start("probes/workload.rb")
    words = ["item", "--by", "id", "--max-keys", "5", "--json"]
    tracer = trace("count", target.pid, *words)
    target.step()
    groups = answer(tracer)["groups"]
    other = [group for group in groups if group.get("other")]
    assert len(groups) == 6
    assert [group["count"] for group in other] == [18]
    assert sum(group["count"] for group in groups) == 23


def test_trace_shows_every_event_with_its_arguments(start, trace):
    target = start("probes/workload.rb")
    tracer = trace("trace", target.pid, "item", "--json")
    target.step()
    out, err, code = tracer.finish()
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    events = [event for event in events if "probe" in event]
    assert len(events) == 23
    arguments = sorted((e["arguments"] for e in events), key=lambda a: a["id"])
    kinds = (
        ["plain"] * 5
        + ["outer", "inner"] * 2
        + ["recursive"] * 6
        + ["raised"] * 3
        + ["thrown"] * 2
        + ["broken"]
        + ["plain"] * 2
    )
    assert arguments == [
        {"id": n, "kind": kind, "price": n * 0.5, "gift": n % 2 == 0}
        for n, kind in enumerate(kinds)
    ]
    assert len({event["tid"] for event in events}) == 3


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("id", {"count": 23, "min": 0, "max": 22}),
        ("price", {"count": 23, "min": 0.0, "max": 11.0}),
    ],
)
def test_values_of_a_number(start, trace, argument, expected):
    target = start("probes/workload.rb")
    tracer = trace("values", target.pid, "item", argument, "--json")
    target.step()
    (group,) = answer(tracer)["groups"]
    assert group["count"] == expected["count"]
    assert group["min"] == expected["min"]
    assert group["max"] == pytest.approx(expected["max"], rel=0.001)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [("kind", KINDS), ("gift", {True: 12, False: 11})],
)
def test_values_that_are_not_numbers_are_counted(start, trace, argument, expected):
    target = start("probes/workload.rb")
    tracer = trace("values", target.pid, "item", argument, "--json")
    target.step()
    assert by_key(answer(tracer)) == expected


def test_a_span_and_a_pair_in_one_command(start, trace):
    """Two BPF programs give one result. Each series comes from one of them."""
    target = start("probes/workload.rb")
    gc = if_ruby_has("gc")
    words = ["work", "pair_begin..pair_end", *gc, "--json"]
    tracer = trace("latency", target.pid, *words)
    target.step()
    groups = answer(tracer)["groups"]
    counts = [(group["series"], group["count"]) for group in groups]
    assert counts[0] == ("load:work", 23)
    assert counts[1] == ("pair_begin..pair_end", 23)
    assert len(counts) == 2 + len(gc)
