"""Results of spans: arguments of the end probe only."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from commands import answer, run

ROUTES = {"/users": 13, None: 6, "/orders": 4}
STATUSES = {200: 10, 404: 6, 500: 4, None: 3}


@pytest.fixture
def target(start):
    return start("probes/results.rb")


def counts(document):
    return {group["key"]: group["count"] for group in document["groups"]}


@pytest.mark.parametrize(("by", "expected"), [("route", ROUTES), ("status", STATUSES)])
def test_latency_by_a_result(target, trace, by, expected):
    tracer = trace("latency", target.pid, "request", "--by", by, "--json")
    assert target.step() == "done"
    document = answer(tracer)
    assert counts(document) == expected
    assert document["counters"]["raised"] == 4


def test_filter_of_results(target, trace):
    words = ("latency", target.pid, "request", "--by", "method", "--json", "--filter")
    failed = trace(*words, "status >= 404")
    users = trace(*words, 'route == "/users" && status == nil')
    target.step()
    assert counts(answer(failed)) == {"GET": 6, "POST": 4}
    assert counts(answer(users)) == {"PUT": 3}


def test_values_of_a_result(target, trace):
    statuses = trace("values", target.pid, "request", "status", "--json")
    routes = trace("values", target.pid, "request", "route", "--json")
    target.step()
    document = answer(statuses)
    (group,) = document["groups"]
    assert (group["count"], group["total"]) == (20, 10 * 200 + 6 * 404 + 4 * 500)
    assert document["counters"]["nil"] == 3
    assert counts(answer(routes)) == ROUTES


def test_nil_results_are_explained(target, trace):
    """Their spans may have been running when tracing began."""
    said = "a result is nil if it was not set, or its span began before tracing did"
    for argument, is_said in (("status", True), ("duration_ns", False)):
        tracer = trace("values", target.pid, "request", argument)
        target.step()
        _, err, code = tracer.finish()
        assert (code, said in " ".join(err.split())) == (0, is_said), err


def test_trace(target, trace):
    tracer = trace("trace", target.pid, "web:request*", "--json")
    target.step()
    out, _, code = tracer.finish()
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    begins = [e for e in events if e.get("probe") == "web:request__begin"]
    ends = [e["arguments"] for e in events if e.get("probe") == "web:request__end"]
    assert len(begins) == 23
    assert {tuple(event["arguments"]) for event in begins} == {("method",)}
    shown = Counter((e["method"], e["outcome"], e["route"], e["status"]) for e in ends)
    assert shown == {
        ("GET", 0, "/users", 200): 10,
        ("GET", 0, None, 404): 6,
        ("POST", 1, "/orders", 500): 4,
        ("PUT", 0, "/users", None): 3,
    }
    assert all(event["duration_ns"] > 0 for event in ends)


def test_probes(target):
    out, _, code = run("probes", target.pid, "request", "--json")
    assert code == 0
    (probe,) = json.loads(out)["probes"]
    assert [(a["name"], a["type"], a["role"]) for a in probe["arguments"]] == [
        ("duration_ns", "integer", "duration"),
        ("outcome", "integer", "outcome"),
        ("method", "string", "argument"),
        ("route", "string", "result"),
        ("status", "integer", "result"),
    ]


def test_a_begin_has_no_results(target, root):
    out, error, code = run("count", target.pid, "request__begin", "--by", "status")
    assert (out, code) == ("", 2)
    assert "web:request__begin has no argument status" in error
