"""Spans of methods, by their Ruby names and as probes."""

from __future__ import annotations

import json

import pytest

from commands import answer, run


@pytest.fixture
def target(start):
    return start("probes/method_spans.rb")


@pytest.mark.parametrize("word", ["Shop::Till#pay!", "shop_till:pay_bang", "pay_bang"])
def test_latency(target, trace, word):
    tracer = trace("latency", target.pid, word, "--by", "cents", "--json")
    target.step()
    document = answer(tracer)
    assert {g["key"]: g["count"] for g in document["groups"]} == {100: 4, 250: 6}
    assert {g["series"] for g in document["groups"]} == {"Shop::Till#pay!"}


def test_an_argument_that_was_not_given_is_nil(target, trace):
    tracer = trace(
        "latency", target.pid, "Shop::Till#pay!", "--by", "currency", "--json"
    )
    target.step()
    groups = {g["key"]: g["count"] for g in answer(tracer)["groups"]}
    assert groups == {None: 4, "USD": 6}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Shop::Till#each", {"Shop::Till#each": 3}),
        ("Shop::Till.open", {"Shop::Till.open": 2}),
        ("Shop::Till#[]", {"Shop::Till#[]": 4}),
        (
            "Shop::Till#*",
            {
                "Shop::Till#pay!": 10,
                "Shop::Till#each": 3,
                "Shop::Till#[]": 4,
                "Shop::Till#fail": 4,
                "Shop::Till#undone": 0,
            },
        ),
    ],
)
def test_count(target, trace, word, expected):
    tracer = trace("count", target.pid, word, "--json")
    target.step()
    groups = answer(tracer)["groups"]
    assert {g["series"]: g["count"] for g in groups} == expected


def test_outcomes(target, trace):
    failed = trace("latency", target.pid, "Shop::Till#fail", "--json")
    broken = trace("latency", target.pid, "Shop::Till#each", "--json")
    target.step()
    counters = answer(failed)["counters"], answer(broken)["counters"]
    assert [c["raised"] for c in counters] == [4, 0]
    assert [c["thrown"] for c in counters] == [0, 3]


def test_probes(target):
    out, _, code = run("probes", target.pid, "Shop::Till#pay!", "--json")
    assert code == 0
    (probe,) = json.loads(out)["probes"]
    assert (probe["span"], probe["method"]) == ("pay_bang", "Shop::Till#pay!")
    out, _, code = run("probes", target.pid, "shop_till:*")
    assert "    = Shop::Till#pay!\n" in out
    assert "    = Shop::Till.open\n" in out
