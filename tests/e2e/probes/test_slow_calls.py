"""Only slow spans: 1 of 50 requests takes a slow path of known kind and length."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commands import Tracer, has_ruby_probes, run
from perfetto_traces import read, slices_of
from processes import LIB, TARGETS, Target
from ruby_builds import Build, build_gem, each_build

SLOW_CALLS = str(TARGETS / "probes/slow_calls.rb")
TRACE = Callable[..., Tracer]
NUMBER = 250
SLOW = NUMBER // 50
SLOW_MS = 200
LEAST_MS = 100

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture(scope="module")
def built(build: Build) -> list[str]:
    """Return the words that run the target in a Ruby."""
    words = build.words()
    build_gem(build)
    return [*words, f"-I{LIB}", SLOW_CALLS, str(SLOW_MS / 1000)]


@pytest.fixture
def target() -> Iterator[Target]:
    with closing(Target("ruby", f"-I{LIB}", SLOW_CALLS, SLOW_MS / 1000)) as made:
        yield made


class Found:
    """The result for slow calls of one kind.

    ``stacks`` has weights in ns by the names of frames, root first.
    """

    def __init__(self, trace: TRACE, target: Target, way: str, out: Path, *words: Any):
        pid = int(target.ready.split()[1])
        options = ("--slower-than", LEAST_MS, "--stacks", out, "--json")
        every = ("--exemplars", 2 * NUMBER)
        tracer = trace("latency", pid, "web:request", *options, *every, *words)
        _, *times = target.step(f"{way} {NUMBER}").split()
        self.least_ns, self.most_ns, self.suspended_ns = map(int, times)
        printed, err, code = tracer.finish()
        assert code == 0, err
        self.document = json.loads(printed)
        counters = self.document["counters"]
        # A page is missing for a moment while it is copied after a fork.
        assert counters["lost_samples"] <= 2 * (way == "forked"), err
        assert counters["incomplete_spans"] == 0, err
        self.slow = self.document["slow"]
        self.stacks = {}
        for line in out.read_text().splitlines():
            names, _, weight = line.rpartition(" ")
            frames = tuple(frame.split(" ")[0] for frame in names.split(";"))
            self.stacks[frames] = self.stacks.get(frames, 0) + int(weight)

    def took(self, path: str) -> list[int]:
        """Return the durations of the slow requests for a path."""
        every = self.slow["exemplars"]
        return [o["duration_ns"] for o in every if o["arguments"]["path"] == path]

    @property
    def weight(self) -> int:
        return sum(self.stacks.values())

    def below(self, name: str) -> int:
        """Return the weight of the stacks that contain a method."""
        return sum(ns for names, ns in self.stacks.items() if name in names)

    @property
    def parts(self) -> Counter[str]:
        """Return how the requests on the slow path spent their time."""
        parts: Counter[str] = Counter()
        for one in self.slow["exemplars"]:
            if one["arguments"]["path"] == "/slow":
                parts.update(one["parts"])
        return parts

    def share(self, *names: str) -> float:
        """Return the share of the given kinds in the requests' own time."""
        parts = self.parts
        own = parts.total() - parts["run queue"]  # other programs had the CPUs then
        return sum(parts[name] for name in names) / own


def assert_slow_path(found: Found, way: str) -> None:
    slow = found.slow
    by_path = Counter(one["arguments"]["path"] for one in slow["exemplars"])
    assert by_path["/slow"] == SLOW, slow
    # The others are slow because of the machine, as when other programs have its CPUs.
    quick = sum(found.took(path="/quick"))
    assert found.below(f"Requests#slow_{way}") > 0.9 * (found.weight - quick), found
    assert sum(slow["parts"].values()) == slow["total_ns"]
    for one in slow["exemplars"]:
        assert sum(one["parts"].values()) == one["duration_ns"]
    assert found.least_ns <= sum(found.took(path="/slow")) <= found.most_ns


WAYS = {
    "on_cpu": ("on CPU",),
    "off_cpu": ("sleep",),
    "locked": ("lock", "thread", "queue"),
    "nested": ("on CPU",),
}


@each_build
def test_the_slow_path(built: list[str], trace: TRACE, tmp_path: Path) -> None:
    with closing(Target(*built)) as target:
        for way, parts in WAYS.items():
            found = Found(trace, target, way, tmp_path / f"{way}.folded")
            assert_slow_path(found, way)
            assert found.share(*parts) > 0.95, found.slow
            assert found.weight == pytest.approx(found.slow["total_ns"], rel=0.01)


@each_build
def test_a_slow_fiber(built: list[str], trace: TRACE, tmp_path: Path) -> None:
    """While a fiber is suspended, the work of other fibers of its thread is not its
    own."""
    with closing(Target(*built)) as target:
        found = Found(trace, target, "fibers", tmp_path / "o.folded", "-r", 999)
    assert_slow_path(found, "fibers")
    assert found.below("Requests#other_work") == 0
    suspended = pytest.approx(found.suspended_ns, rel=0.1)
    assert found.parts["suspended"] == suspended, found.slow
    assert found.share("on CPU", "suspended") > 0.95, found.slow


def test_a_fight_for_the_gvl(target: Target, trace: TRACE, tmp_path: Path) -> None:
    found = Found(trace, target, "contended", tmp_path / "o.folded")
    assert_slow_path(found, "contended")
    # It is longer by a hypervisor's time, which a CPU clock leaves out.
    on_cpu = found.parts["on CPU"]
    assert 0.95 * SLOW * SLOW_MS * 1e6 <= on_cpu < found.parts["GVL"]
    assert found.share("on CPU", "GVL") > 0.95, found.slow


def test_a_child(target: Target, trace: TRACE, tmp_path: Path) -> None:
    words = ("--subprocesses",)
    found = Found(trace, target, "forked", tmp_path / "o.folded", *words)
    assert_slow_path(found, "on_cpu")
    assert found.share("on CPU") > 0.95, found.slow
    assert target.pid not in {one["pid"] for one in found.slow["exemplars"]}


def test_exemplars(target: Target, trace: TRACE, tmp_path: Path) -> None:
    words = ("--exemplars", 2)
    found = Found(trace, target, "off_cpu", tmp_path / "o.folded", *words)
    first, second = found.slow["exemplars"]
    assert first["duration_ns"] >= second["duration_ns"]
    for one in (first, second):
        assert one["arguments"]["path"] == "/slow"
        assert one["arguments"]["id"] % 50 == 0
        own = one["duration_ns"] - one["parts"].get("run queue", 0)
        assert one["parts"]["sleep"] > 0.95 * own
        assert one["series"] == "web:request"


def test_a_filter(target: Target, trace: TRACE, tmp_path: Path) -> None:
    words = ("--filter", "id == 100")
    found = Found(trace, target, "off_cpu", tmp_path / "o.folded", *words)
    (one,) = found.slow["exemplars"]
    assert (one["arguments"]["id"], found.slow["count"]) == (100, 1)
    assert found.weight == pytest.approx(one["duration_ns"], rel=0.01)


def test_time_in_two_spans_counts_once(
    target: Target, trace: TRACE, tmp_path: Path
) -> None:
    words = ("web:inner",)
    found = Found(trace, target, "nested", tmp_path / "o.folded", *words)
    requests = [one for one in found.slow["exemplars"] if one["arguments"].get("path")]
    assert found.slow["count"] == len(requests) + SLOW
    took = sum(one["duration_ns"] for one in requests)
    assert found.weight == pytest.approx(took, rel=0.01)


def test_report_and_flame_graph(target: Target, trace: TRACE, tmp_path: Path) -> None:
    out = tmp_path / "slow.svg"
    pid = int(target.ready.split()[1])
    words = ("web:request", "--slower-than", "100ms", "--stacks", out)
    tracer = trace("latency", pid, *words)
    target.step("off_cpu 50")
    report, err, code = tracer.finish()
    assert code == 0, err
    assert "▸ slow from 100 ms: 1 (2.0 %)" in report
    assert ' id: 50, path: "/slow"' in report
    assert "\n  no losses\n  cost: 50 hits of probes at " in report
    picture = out.read_text()
    assert "Requests#slow_off_cpu" in picture
    assert "Requests#quick" not in picture


def test_a_timeline(target: Target, trace: TRACE, tmp_path: Path) -> None:
    path = tmp_path / "slow.pftrace"
    options = ("--timeline", path, "--exemplars", 2)
    found = Found(trace, target, "off_cpu", tmp_path / "o.folded", *options)
    packets = read(path)
    tracks = slices_of(packets)
    assert len(tracks) == len(found.slow["exemplars"]) == 2
    for names in tracks.values():
        assert names[0] == "web:request"
        assert {"Requests#slow_off_cpu", "Kernel#sleep", "(sleep)"} < set(names)
        assert "Requests#quick" not in names


BAD = {
    "--stacks needs --slower-than": ("--stacks", "o.svg"),
    "--exemplars needs --slower-than": ("--exemplars", "3"),
    "--timeline needs --slower-than": ("--timeline", "slow.pftrace"),
    "--rate needs --slower-than": ("--rate", "99"),
    "--timeline and --exemplars 0": (
        *("--slower-than", "5", "--timeline", "slow.pftrace", "--exemplars", "0"),
    ),
    "unknown extension": ("--slower-than", "5", "--stacks", "o.xyz"),
    "unknown format: png": ("--slower-than", "5", "--stacks", "o.png"),
    "cannot write a recording": ("--slower-than", "5", "--stacks", "o.rbrec"),
    "-m and --slower-than": ("--slower-than", "5", "-m", "Requests#"),
    "--interval and --slower-than": ("--slower-than", "5", "-i", "1"),
    "--rate above 10000 and --slower-than": ("--slower-than", "5", "-r", "20000"),
    "'soon' is not a time": ("--slower-than", "soon"),
}


@pytest.mark.parametrize("error", BAD)
def test_bad_options(target: Target, tmp_path: Path, error: str) -> None:
    _, err, code = run("latency", target.pid, "request", *BAD[error], folder=tmp_path)
    assert (error in err, code) == (True, 2), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("web:request__begin..web:request__end", "--slower-than needs a span"),
        ("gc", "--slower-than needs a span"),
        ("method", "--slower-than needs a span"),
        ("web:request__begin", "has no duration"),
        ("nothing", "no probe matches nothing"),
    ],
)
def test_words_that_are_not_spans(target: Target, word: str, error: str) -> None:
    if word == "gc" and not has_ruby_probes():
        error = "no probe matches ruby:gc__mark__begin"
    _, err, code = run("latency", target.pid, word, "--slower-than", "5")
    assert error in err, err
    assert code != 0
