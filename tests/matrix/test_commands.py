"""Results that each Ruby must give, for each kind of build, with its JITs off and on.

`scripts/rubies.sh check DIR` runs these tests on one Ruby, and prints its row of
docs/rubies.md: the name of a test is the name of a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ruby_builds
from commands import Tracer, answer, by_key, run, without_times
from rubies import Running
from ruby_builds import Build, each_build

pytestmark = [each_build, pytest.mark.usefixtures("root")]

Trace = Callable[..., Tracer]


def answered(*words: object) -> Any:
    """Return the JSON of a command that succeeds."""
    out, err, code = run(*words)
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def zoo(build: Build) -> Iterator[Running]:
    """Threads that wait in every kind of frame, and Ruby's own view of them."""
    with ruby_builds.running(build, "stacks/stack_zoo.rb") as process:
        yield process


@pytest.fixture(scope="module")
def burning(build: Build) -> Iterator[Running]:
    """A thread on a CPU in three methods."""
    with ruby_builds.running(build, "stacks/burning.rb") as process:
        yield process


@pytest.fixture
def methods(build: Build) -> Iterator[Running]:
    """A program that did not load the agent."""
    with ruby_builds.running(build, "methods/methods.rb", "bare") as process:
        yield process


def truth(process: Running) -> dict[str, list[list[Any]]]:
    """Return (path, line, label) of each frame by thread, newest first."""
    said = json.loads(process.ready.removeprefix("ready "))
    return {name: list(map(whole, stack)) for name, stack in said["stacks"].items()}


def whole(location: list[Any]) -> list[Any]:
    """Return a place as ``dump`` prints it: without the class that 3.4 puts before a
    method."""
    path, line, label = location
    if path is None:  # a C function at the root of an Enumerator's fiber
        return [None, None, bare(label)]
    return [path, line, bare(label)]


def bare(label: str) -> str:
    """Return the method of a label, without its class."""
    head, _, last = label.rpartition(" in ")
    return f"{head} in {method(last)}" if head else method(last)


def method(name: str) -> str:
    return re.sub(r"^(?:#<.*>|[\w:]+)[#.](?=[^>])", "", name)


def dumped_stacks(process: Any) -> dict[str, list[list[Any]]]:
    return {
        thread["name"]: [
            [frame["path"] or None, frame["line"], bare(frame["name"])]
            for frame in thread["frames"]
        ]
        for thread in process["threads"]
    }


def check_zoo(document: Any, build: Build, zoo: Running) -> None:
    """Check that each frame of each thread is as in Ruby, and that none is flagged."""
    (process,) = document["processes"]
    assert process["failed"] == 0
    expected = truth(zoo)
    found = dumped_stacks(process)
    for name, stack in expected.items():
        # The innermost frame of a JIT may have no valid pc.
        if build.jit and found.get(name, [])[:1] == [[stack[0][0], None, stack[0][2]]]:
            stack[0][1] = None
    assert {name: found.get(name) for name in expected} == expected
    assert not any(thread["trimmed"] for thread in process["threads"])


def test_dump(build: Build, zoo: Running) -> None:
    check_zoo(answered("dump", zoo.pid, "--json"), build, zoo)


def test_core(build: Build, zoo: Running, tmp_path: Path) -> None:
    core = ruby_builds.core_of(zoo.pid, tmp_path)
    check_zoo(answered("dump", core, *_program(zoo), "--json"), build, zoo)


def _program(process: Running) -> list[str]:
    """Name the actual path of libruby, as a core has the chroot's own path."""
    root = Path(f"/proc/{process.pid}/root").resolve()
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    found = sorted(set(re.findall(r"/\S+/libruby\S*\.so\S*", maps)))
    if not found or (root == Path("/") and Path(found[0]).exists()):
        return []
    return ["--exe", f"/proc/{process.pid}/root{found[0].removeprefix(str(root))}"]


def test_stacks(burning: Running) -> None:
    words = ("--format", "json", "-d", "1", "-r", "200")
    document = answered("stacks", burning.pid, *words)
    seen = {frame["name"] for frame in document["frames"]}
    assert {"Object#half", "Object#third", "Object#fifth"} <= seen, seen
    samples = document["counters"]["samples"]
    assert document["lost"] <= samples / 100, document["counters"]


def test_top(burning: Running) -> None:
    out, err, code = run("top", burning.pid, "-d", "1")
    assert code == 0, err
    for name in ("Object#half", "Object#third", "Object#burn"):
        assert name in out


def test_attach(methods: Running) -> None:
    said = answered("attach", methods.pid, "--json")
    assert (said["was_there"], said["method_events"]) == (False, True), said
    assert answered("eval", methods.pid, "6 * 7", "--json")["value"] == "42"
    assert methods.target.step("none").startswith("done")
    assert answered("detach", methods.pid, "--json")["pid"] == methods.pid
    assert methods.target.step("none").startswith("done")


def test_latency(methods: Running, trace: Trace) -> None:
    tracer = trace("latency", methods.pid, "method", "--attach", "--yes", "--json")
    for word in ("orders", "fib", "raise", "threads", "fibers"):
        assert methods.target.step(word).startswith("done")
    document = answer(tracer)
    expected = {
        "Order#total": 10,
        "Order#lines": 20,
        "Order.find": 20,
        "Work.fib": 1973 + 8 * 50 * 15 + 20 * 15,
        "Work.attempt": 30,
        "Work.refuse": 30,
    }
    counted = by_key(document)
    assert {name: counted.get(name) for name in expected} == expected
    assert document["lost"] == 0


TREE = """\
Order#total
  Order#lines
    Order#timed <>
  Order#lines <>
  Order#lines
    Order#timed <>
  Order#lines <>
Order#total <>
"""


def test_calls(methods: Running, trace: Trace) -> None:
    words = ("calls", methods.pid, "-m", "Order#", "--attach", "--yes")
    tracer = trace(*words)
    assert methods.target.step("orders").startswith("done")
    out, err, code = tracer.finish()
    assert code == 0, err
    shown = without_times(out)
    assert shown.replace("\n\n", "\n") == 10 * TREE


def test_probes(build: Build, trace: Trace) -> None:
    """These are the gem's, whose extension is compiled for that Ruby."""
    build.words()
    ruby_builds.build_gem(build)
    script = "probes/workload.rb"
    library = str(ruby_builds.ROOT / "ruby" / "lib")
    words = [*build.words(), f"-I{library}", str(ruby_builds.TARGETS / script)]
    target = ruby_builds.Target(*words)
    try:
        pid = ruby_builds.innermost(target.pid)
        tracer = trace("count", pid, "load:*", "--json")
        assert target.step() == "done"
        groups = answer(tracer)["groups"]
    finally:
        target.close()
    names = ("item", "work__begin", "work__end", "pair_begin", "pair_end")
    expected = {f"load:{name}": 23 for name in names}
    assert {group["series"]: group["count"] for group in groups} == expected
