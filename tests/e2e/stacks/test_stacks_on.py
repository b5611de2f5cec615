"""Stacks at events, of programs that fire known numbers of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from commands import Tracer, has_ruby_probes
from processes import LIB, TARGETS, Target

EVENTS = str(TARGETS / "stacks/events.rb")
TRACE = Callable[..., Tracer]
Document = dict[str, Any]

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture
def target() -> Iterator[Target]:
    with closing(Target("ruby", f"-I{LIB}", EVENTS)) as made:
        yield made


def sampled(trace: TRACE, target: Target, step: str, *options: object) -> Document:
    """Read stacks at events while a target takes a step; the JSON document."""
    pid = int(target.ready.split()[1])
    tracer = trace("stacks", pid, "--format", "json", *options)
    assert target.step(step) == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    found: Document = json.loads(out)
    assert (found["mode"], found["engine"]) == ("event", "bpf")
    assert found["lost"] == 0, found["counters"]
    assert found["counters"]["unclean"] == 0
    return found


def weights(document: Document) -> Counter[tuple[str, ...]]:
    """Weights by the names of frames, the root first."""
    names = [frame["name"] for frame in document["frames"]]
    found: Counter[tuple[str, ...]] = Counter()
    for row in document["stacks"]:
        found[tuple(names[frame] for frame in row["frames"])] += row["weight"]
    return found


def below(document: Document, name: str) -> int:
    """Weight of the stacks in which a method is."""
    return sum(count for names, count in weights(document).items() if name in names)


def test_a_probe_of_the_gem(target: Target, trace: TRACE) -> None:
    found = sampled(trace, target, "fire 1000", "--on", "shop:sold")
    assert (found["unit"], found["event"]) == ("events", "shop:sold")
    caller = ("<main>", "Kernel#public_send", "Events#fire", "Integer#times")
    fired = ("block in Events#fire", "Tracepoint::Probe#fire")
    assert weights(found) == {(*caller, *fired): 1000}


def test_an_argument_as_weight(target: Target, trace: TRACE) -> None:
    options = ("--on", "shop:sold", "--weight", "cents")
    found = sampled(trace, target, "fire 1000", *options)
    assert (found["unit"], found["event"], found["argument"]) == (
        "weight",
        "shop:sold",
        "cents",
    )
    assert list(weights(found).values()) == [sum(range(1, 1001))]
    assert found["counters"]["samples"] == 1000


def test_each_nth(target: Target, trace: TRACE) -> None:
    found = sampled(trace, target, "fire 1000", "--on", "shop:sold", "--every", 10)
    assert (found["unit"], found["weight"]) == ("events", 1000)
    assert found["counters"]["samples"] == 100


@pytest.mark.skipif(not has_ruby_probes(), reason="this Ruby has no probes")
def test_a_probe_of_ruby(target: Target, trace: TRACE) -> None:
    found = sampled(trace, target, "create 1000", "--on", "ruby:object__create")
    assert below(found, "Events#make") == 1000
