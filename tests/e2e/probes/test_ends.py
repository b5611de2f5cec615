"""The end of a session, and the reason that it reports."""

from __future__ import annotations

import json
import time

import pytest
from crafted import Crafted

from rbtrace_py.session.probes.count import Count
from rbtrace_py.session.probes.latency import Latency
from rbtrace_py.session.targets.targets import Targets

INTEGER = 1


def define(target, name, *operands, role=0):
    target.define(name, operands, role)


@pytest.mark.parametrize("attach", ["multi", "perf"])
def test_time_to_detach_is_not_measured(crafted, trace, attach):
    """Detaching 20 perf uprobes takes seconds."""
    for number in range(20):
        define(crafted, f"event{number}", ["id", INTEGER, 0])
    env = {"RBTRACE_ATTACH": attach}
    tracer = trace("count", crafted.pid, "made:*", "--json", env=env)
    crafted.told("fire", "event7", [1], 23)
    asked = time.time_ns()
    out, err, code = tracer.finish()
    gone = time.time_ns()
    assert code == 0, err
    document = json.loads(out)
    assert document["count"] == 23
    if attach == "perf":
        assert document["ended_ns"] - asked < (gone - asked) / 2


def test_one_of_several_targets_exits_before_attaching(crafted):
    other = Crafted()
    for target in (other, crafted):
        define(target, "event", ["id", INTEGER, 0])

    class Slow(Count):
        def make_engines(self, attacher):
            super().make_engines(attacher)
            other.close()

    targets = Targets.from_pids([other.pid, crafted.pid])
    with Slow(targets, ["made:event"]) as session:
        crafted.told("fire", "event", [1], 23)
        assert session.snapshot().count == 23
    targets.close()


@pytest.mark.parametrize(
    ("kind", "word", "counted"), [(Count, "made:*", 6), (Latency, "begin..end", 3)]
)
def test_events_after_the_end_are_not_counted(crafted, kind, word, counted):
    for name in ("begin", "end"):
        define(crafted, name, ["id", INTEGER, 0])
    targets = Targets.from_pids([crafted.pid])
    with kind(targets, [word]) as session:
        for times in (3, 4):
            for _ in range(times):
                crafted.told("fire", "begin", [1], 1)
                crafted.told("fire", "end", [1], 1)
            for engine in session._engines:
                engine.silence()
        assert session.snapshot().count == counted
    targets.close()


@pytest.mark.parametrize("command", ["count", "trace"])
def test_children_that_did_not_join(start, trace, command):
    """Nothing was counted, and the events may have been in one of three children."""
    target = start("probes/preforking.rb")
    pid = target.pid
    document = trace(command, pid, "fork:parent_after", "--json").finish()[0]
    assert json.loads(document)["counters"]["not_followed"] == 3
    shown = trace(command, pid, "fork:parent_after").finish()
    assert "the target has 3 child processes, which were not traced" in "".join(
        map(str, shown)
    )


@pytest.mark.parametrize(
    ("words", "fires"), [([], True), (["--subprocesses"], False), ([], None)]
)
def test_no_note_about_children_if_it_does_not_help(start, trace, words, fires):
    """There is no note if events were counted, the children joined, or none exist."""
    target = start("probes/preforking.rb", *([] if fires is not None else ["--late"]))
    tracer = trace("count", target.pid, "parent_after", *words, "--json")
    if fires:
        target.step()
    document = json.loads(tracer.finish()[0])
    assert document["count"] == (10 if fires else 0)
    assert "not_followed" not in document["counters"]
