"""Each example, driven by its handshake, gives the counts that its comment promises."""

from __future__ import annotations

import os

import pytest

from commands import answer, by_key
from processes import LIB, ROOT, TIMEOUT, Target, read_line

EXAMPLES = ROOT / "examples"


class Example(Target):
    """A process that prints "ready", works after one line, and prints "done"."""

    def __init__(self, name, *arguments):
        super().__init__("ruby", f"-I{LIB}", EXAMPLES / name, "--wait", *arguments)

    def await_ready(self):
        self.said = self.until("ready")
        return self.said[-1]

    def until(self, word):
        lines = []
        while not lines or lines[-1] != word:
            lines.append(read_line(self.process.stdout))
            assert lines[-1], f"it ended before it said {word}: {lines}"
        return lines

    def work(self):
        self.tell()
        return self.until("done")

    def close(self):
        self.process.stdin.close()
        self.process.wait(TIMEOUT)
        self.process.stdout.close()


@pytest.fixture
def example():
    started = []

    def begin(name, *arguments):
        started.append(Example(name, *arguments))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def counts(document):
    return {group["series"]: group["count"] for group in document["groups"]}


def test_hello(example, trace):
    hello = example("hello.rb", "--count", "7")
    tracer = trace("count", hello.pid, "*", "--json")
    hello.work()
    assert sum(by_key(answer(tracer)).values()) == 7


def test_shop(example, trace):
    shop = example("shop/shop.rb", "--orders", "40")
    latency = trace("latency", shop.pid, "checkout", "--by", "sku", "--json")
    count = trace("count", shop.pid, "shop:order", "--by", "sku", "--json")
    shop.work()
    document = answer(latency)
    assert by_key(document) == {"tea": 20, "coffee": 12, "cake": 8}
    assert document["counters"]["raised"] == 2
    assert by_key(answer(count)) == {"tea": 20, "coffee": 12, "cake": 6}


def test_latency_of_a_known_distribution(example, trace):
    latency = example("latency.rb", "--count", "1")
    tracer = trace("latency", latency.pid, "work", "--by", "kind", "--json")
    latency.work()
    groups = {group["key"]: group for group in answer(tracer)["groups"]}
    assert {key: g["count"] for key, g in groups.items()} == {
        "fast": 90,
        "medium": 9,
        "slow": 1,
    }
    for key, least in (("fast", 1_000_000), ("medium", 10_000_000)):
        assert groups[key]["min"] >= least * 0.999
    assert groups["slow"]["min"] >= 100_000_000 * 0.999


def test_nested_spans(example, trace):
    nested = example("nested_spans.rb", "--count", "20")
    tracer = trace("latency", nested.pid, "request", "query", "render", "--json")
    nested.work()
    document = answer(tracer)
    assert counts(document) == {
        "ruby_app:request": 20,
        "ruby_app:query": 36,
        "ruby_app:render": 64,
    }
    assert document["counters"]["raised"] == document["counters"]["thrown"] == 2


def test_preforking(example, trace):
    """The parent and three children, as a process tree and as four pids."""
    server = example("preforking.rb", "--count", "5")
    children = next(line for line in server.said if line.startswith("children"))
    pids = ",".join([str(server.pid), *children.split()[1:]])
    family = trace("count", server.pid, "prefork:*", "--subprocesses", "--json")
    several = trace("count", pids, "prefork:job", "--by", "worker", "--json")
    server.work()
    found = counts(answer(family))
    assert found["prefork:before"] == found["prefork:job__end"] == 20
    assert (found["prefork:parent"], found["prefork:child"]) == (5, 15)
    assert by_key(answer(several)) == {-1: 5, 0: 5, 1: 5, 2: 5}


def test_receipts(example, trace):
    """The shop's CPU work is in its samples."""
    shop = example("shop/shop.rb", "--orders", "400")
    tracer = trace("stacks", shop.pid, "--rate", "499")
    shop.work()
    out, err, code = tracer.finish()
    assert (code, "Shop::Books#write" in out) == (0, True), err


def test_every_example_is_here():
    names = {name for name in os.listdir(EXAMPLES) if not name.endswith(".md")}
    tested = {"hello.rb", "shop", "latency.rb", "nested_spans.rb", "preforking.rb"}
    elsewhere = {"rails", "gvl.rb", "stuck.rb"}  # tested elsewhere
    assert names == tested | elsewhere | {"handshake.rb"}
