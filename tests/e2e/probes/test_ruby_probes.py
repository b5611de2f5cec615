"""Ruby's own probes: built-in names, semaphores, and unsafe arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise

import pytest

import rubies
from commands import Tracer, answer, by_key, run
from processes import TARGETS, Target
from ruby_builds import Build

Trace = Callable[..., Tracer]

LOOP = """
$stdout.sync = true
puts "ready"
while $stdin.gets
  5.times { GC.start }
  3.times { load ARGV[0] }
  [3, 1, 2].sort
  puts "done"
end
"""


@pytest.fixture
def ruby(ruby_probes, tmp_path):
    """A Ruby without the gem and without lambda literals."""
    loaded = tmp_path / "loaded.rb"
    loaded.write_text("1\n")
    script = tmp_path / "loop.rb"
    script.write_text(LOOP)
    target = Target("ruby", "--disable-gems", str(script), str(loaded))
    yield target
    target.close()


def test_built_in_words(ruby, trace):
    tracer = trace("latency", ruby.pid, "gc", "gc-mark", "gc-sweep", "load", "--json")
    ruby.step()
    counts = {group["series"]: group["count"] for group in answer(tracer)["groups"]}
    assert counts["load"] == 3
    assert counts["gc-mark"] >= 5
    assert counts["gc"] == counts["gc-mark"] + counts["gc-sweep"]


def test_cmethods_need_a_yes(ruby, trace):
    out, err, code = run("latency", ruby.pid, "cmethod")
    assert (out, code) == ("", 1)
    assert "--yes" in err
    tracer = trace("latency", ruby.pid, "cmethod", "--by", "method", "--yes", "--json")
    ruby.step()
    counts = by_key(answer(tracer))
    assert counts["sort"] == 1
    assert counts["load"] == 3


def test_a_glob_passes_over_what_is_not_safe(ruby, trace):
    tracer = trace("count", ruby.pid, "ruby:*", "--json")
    ruby.step()
    counts = {group["series"]: group["count"] for group in answer(tracer)["groups"]}
    assert counts["ruby:load__entry"] == 3
    assert not any("cmethod" in name for name in counts)


def test_all_sites_of_a_probe_and_its_semaphore(ruby, trace):
    """gc__mark__begin and others have a semaphore. Ruby fires them only while it is
    raised."""
    tracer = trace("count", ruby.pid, "load__entry", "load__return", "--json")
    ruby.step()
    counts = {group["series"]: group["count"] for group in answer(tracer)["groups"]}
    assert counts == {"ruby:load__entry": 3, "ruby:load__return": 3}


NEW_IN_4_1 = {
    "gc__enter": "event",
    "gc__exit": "event",
    "gc__mark_stacked_objects": "popped_count",
    "gc__obj_free": "obj flags",
    "gc__obj_new": "obj flags",
    "gc__sweep_page": "slot_size final_slots freed_slots empty_slots",
    "gc__xcalloc": "n size",
    "gc__xfree": "ptr size",
    "gc__xmalloc": "n size",
    "gvl__acquire": "",
    "gvl__release": "",
    "rts__set_running": "sched old_thread new_thread",
}


@pytest.fixture(params=[*map(rubies.chroot, ("", "yjit", "zjit"))])
def newer(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Ruby 4.1, with and without a JIT."""
    build = Build("4.1.0dev-shared", request.param)
    words = [*build.words(), "--disable-gems"]
    with closing(Target(*words, str(TARGETS / "probes/newer_probes.rb"))) as target:
        yield target


def test_arguments_of_newer_probes(newer: Target) -> None:
    out, err, code = run("probes", newer.pid, "--json", "ruby:*")
    assert code == 0, err
    found = {
        probe["name"]: " ".join(argument["name"] for argument in probe["arguments"])
        for probe in json.loads(out)["probes"]
    }
    assert {name: found.get(name) for name in NEW_IN_4_1} == NEW_IN_4_1


def test_pauses_for_the_collector(newer: Target, trace: Trace) -> None:
    tracer = trace("latency", newer.pid, "gc-pause", "--by", "event", "--json")
    assert newer.step("collect 5") == "done"
    assert by_key(answer(tracer)) == {0: 5}  # one event per start


def test_swept_pages(newer: Target, trace: Trace) -> None:
    words = ("gc__mark_stacked_objects", "gc__sweep_page")
    tracer = trace("count", newer.pid, *words, "--json")
    assert newer.step("collect 5") == "done"
    counts = {group["series"]: group["count"] for group in answer(tracer)["groups"]}
    assert counts["ruby:gc__mark_stacked_objects"] >= 5
    assert counts["ruby:gc__sweep_page"] >= 50


def test_new_objects(newer: Target, trace: Trace) -> None:
    words = ("gc__obj_new", "--by", "flags", "--yes", "--json")
    tracer = trace("count", newer.pid, *words)
    assert newer.step("create 1000") == "done"
    assert 1000 in by_key(answer(tracer)).values()


@pytest.mark.parametrize("probe", ["gc__xmalloc", "gc__xfree"])
def test_memory_outside_of_the_heap(newer: Target, trace: Trace, probe: str) -> None:
    words = (probe, "size", "--filter", "size > 123000", "--yes", "--json")
    tracer = trace("values", newer.pid, *words)
    # One has a NUL. The last object may still be on the stack when the others are
    # freed.
    assert newer.step("allocate 8") == "done"
    assert newer.step("collect 1") == "done"
    (group,) = answer(tracer)["groups"]
    assert group["count"] in {"gc__xmalloc": (8,), "gc__xfree": (7, 8)}[probe]
    assert group["min"] <= 123_457 <= group["max"] < 123_600


def test_handovers_of_the_gvl(newer: Target, trace: Trace) -> None:
    tracer = trace("trace", newer.pid, "rts__set_running", "--json")
    assert newer.step("switch 50") == "done"
    out, err, code = tracer.finish()
    assert code == 0, err
    lines = map(json.loads, out.splitlines())
    events = [line["arguments"] for line in lines if "arguments" in line]
    assert len(events) >= 100
    assert len({event["sched"] for event in events}) == 1
    for before, after in pairwise(events):
        assert after["old_thread"] == before["new_thread"]


def test_the_vms_lock(newer: Target, trace: Trace) -> None:
    tracer = trace("latency", newer.pid, "vm-lock", "--json")
    assert newer.step("create 100000") == "done"
    (group,) = answer(tracer)["groups"]
    assert group["count"] > 0


@pytest.mark.parametrize("command", ["count", "trace"])
def test_probes_of_allocations_need_a_yes(newer: Target, command: str) -> None:
    out, err, code = run(command, newer.pid, "ruby:gc__obj_new")
    assert (out, code) == ("", 1)
    assert "--yes" in err


def test_a_glob_passes_over_allocations(newer: Target, trace: Trace) -> None:
    tracer = trace("count", newer.pid, "ruby:gc__*", "--json")
    assert newer.step("create 1000") == "done"
    names = {group["series"] for group in answer(tracer)["groups"]}
    assert "ruby:gc__enter" in names
    assert not {"ruby:gc__obj_new", "ruby:gc__xmalloc", "ruby:gc__xfree"} & names


def test_a_ruby_without_the_newer_probes(ruby: Target) -> None:
    out, err, code = run("latency", ruby.pid, "gc-pause")
    assert (out, code) == ("", 4)
    assert "Use Ruby 4.1 or later" in err
