"""Probes that match a glob but cannot be traced are left out, counted, and named."""

from __future__ import annotations

import json

import pytest
from crafted import Crafted

from commands import answer, run

INTEGER, STRING = 1, 2
SPAN_END = [["duration_ns", INTEGER, 1], ["outcome", INTEGER, 2], ["id", INTEGER, 0]]
CENTS, SKU = ["cents", INTEGER, 0], ["sku", STRING, 0]


def define(target, name, *operands, role=0):
    target.define(name, operands, role, "shop")


@pytest.mark.parametrize(
    ("words", "without", "series", "note"),
    [
        (["count", "shop:*", "--by", "cents"], 3, 2, "3 probes have no argument cents"),
        (["count", "shop:*", "--by", "pid"], 0, 5, None),
        (
            ["count", "shop:*", "--by", "sku", "--filter", "cents > 1"],
            4,
            1,
            "4 probes have no argument cents or sku",
        ),
        (["values", "shop:*", "sku"], 3, 2, "3 probes have no argument sku"),
        (
            ["latency", "shop:*", "--by", "cents"],
            1,
            1,
            "1 probe has no argument cents and is not traced",
        ),
    ],
)
def test_probes_without_the_operand(crafted, trace, words, without, series, note):
    define(crafted, "paid", CENTS)
    define(crafted, "order", SKU)
    define(crafted, "ping")
    define(crafted, "work__end", *SPAN_END, role=2)
    define(crafted, "sale__end", *SPAN_END, CENTS, SKU, role=2)
    tracer = trace(words[0], crafted.pid, *words[1:], "--json")
    crafted.told("fire", "paid", [5], 1)
    crafted.told("fire", "ping", [], 1)
    crafted.told("fire", "sale__end", [7, 0, 1, 5, "tea"], 1)
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    assert document["counters"]["no_operand"] == without
    assert document["counters"]["not_traced"] == 0
    assert len(document["series"]) == series
    if note is None:
        assert "operand" not in err
    else:
        assert note in err


def test_probes_without_the_argument_are_noted_below_the_result(crafted, trace):
    define(crafted, "paid", CENTS)
    define(crafted, "ping")
    for command in ("count", "trace"):
        tracer = trace(command, crafted.pid, "shop:*", "--filter", "cents > 1")
        crafted.told("fire", "paid", [5], 1)
        out, err, _ = tracer.finish()
        assert "1 probe has no such argument and was not traced" in out + err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["count", "shop:*", "--by", "cents"],
            "none of the 2 probes shop:* has an argument cents",
        ),
        (
            ["latency", "shop:*", "--by", "cents"],
            "shop:work__end has no argument cents",
        ),
        (
            ["values", "shop:*", "cents"],
            "none of the 2 probes shop:* has an argument cents",
        ),
        (["trace", "shop:*", "--filter", "cents > 1"], "no argument 'cents'"),
    ],
)
def test_nothing_is_left(crafted, words, said):
    define(crafted, "work__end", *SPAN_END, role=2)
    define(crafted, "ping")
    _, err, code = run(words[0], crafted.pid, *words[1:])
    assert said in err
    assert code == 2


def test_a_later_probe_without_the_operand(crafted, trace):
    """It is in one of several processes, which has no other probe."""
    other = Crafted()
    try:
        define(crafted, "paid", CENTS)
        define(other, "ping")
        pids = f"{crafted.pid},{other.pid}"
        tracer = trace("count", pids, "shop:*", "--by", "cents", "--json")
        define(other, "pong", SKU)
        define(other, "sold", CENTS)
        while True:
            out, _, _ = run("probes", other.pid, "shop:sold", "--json")
            if json.loads(out)["probes"][0]["traced"]:
                break
        crafted.told("fire", "paid", [5], 3)
        other.told("fire", "sold", [6], 2)
        document = answer(tracer)
    finally:
        other.close()
    counts = {(g["series"], g["key"]): g["count"] for g in document["groups"]}
    assert counts == {("shop:paid", 5): 3, ("shop:sold", 6): 2}
    counters = document["counters"]
    assert (counters["no_operand"], counters["not_traced"]) == (2, 0)
    assert counters["late_probes"] == 1


def test_no_note_about_children_if_none_can_join(crafted, trace):
    """For several named processes, the kernel needs no BTF."""
    define(crafted, "paid", CENTS)
    other = Crafted()
    try:
        define(other, "paid", CENTS)
        tracer = trace("count", f"{crafted.pid},{other.pid}", "paid")
        _, err, code = tracer.finish()
    finally:
        other.close()
    assert (code, "BTF" in err) == (0, False)
