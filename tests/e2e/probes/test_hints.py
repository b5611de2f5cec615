"""Hints for a user who names a probe that does not exist."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from terminal import Terminal

from commands import if_ruby_has, run
from processes import LIB, Target
from rbtrace_py.agent.place import NoAgent
from rbtrace_py.linux.probes import Problem, Scan
from rbtrace_py.linux.process import Process
from rbtrace_py.session.methods import event_source

RUBY = "$stdout.sync = true; puts :ready; gets"


def hint_of(*words: object) -> tuple[str, str, int]:
    """Return the first line, the other lines joined, and the exit code."""
    out, err, code = run(*words)
    assert out in ("", "no probes\n")
    first, _, rest = err.partition("\n")
    return first, " ".join(rest.split()), code


def test_not_ruby(root):
    target = Target("sh", "-c", "echo ready; read line")
    try:
        first, rest, code = hint_of("count", target.pid, "checkout")
        assert (first, code) == ("rbtrace-py: no probe matches checkout", 4)
        assert f"process {target.pid} (sh) is not Ruby" in rest
        # libc has probes on some systems, and the existing probes are listed.
        out, err, code = run("probes", target.pid)
        assert code == 0
        assert ("is not Ruby" in err) is (out == "no probes\n")
    finally:
        target.close()


def test_ruby_without_the_gem(root):
    target = Target("ruby", "-e", RUBY)
    try:
        for command in ("count", "probes"):
            _, rest, code = hint_of(command, target.pid, "checkout")
            assert code == 4
            assert f"process {target.pid} (ruby) is Ruby, but has not loaded" in rest
        _, rest, code = hint_of("count", target.pid, "ruby:no_such_probe")
        assert code == 4
        assert "has not loaded" not in rest
    finally:
        target.close()


def test_the_gem_without_probes(root):
    target = Target("ruby", f"-I{LIB}", "-rtracepoint", "-e", RUBY)
    try:
        _, rest, code = hint_of("trace", target.pid, "checkout")
        assert code == 4
        assert "(ruby) has loaded the gem, but has not defined one yet" in rest
        assert "--wait" in rest
    finally:
        target.close()


def test_a_ruby_whose_library_cannot_be_opened(root, monkeypatch):
    """It is unknown whether the Ruby has probes."""
    target = Target("ruby", "-e", RUBY)
    problem = Problem("/lib/libruby.so (deleted)", "not allowed to open it")
    scan = Scan([], [problem])
    monkeypatch.setattr(event_source, "scan_probes", lambda *more: scan)
    try:
        with Process(target.pid) as process:
            targets = SimpleNamespace(
                command=None, probes=None, chosen=lambda: [process]
            )
            with pytest.raises(NoAgent, match="not allowed to open it"):
                event_source._check_probes(targets, ["gc"], ["gc"])
    finally:
        target.close()


def test_with_probes_the_nearest_is_enough(start, root):
    target = start("probes/late.rb")
    first, rest, code = hint_of("count", target.pid, "frist")
    assert (first, code) == ("rbtrace-py: no probe matches frist", 4)
    assert rest.startswith("Did you mean late:first")
    assert str(target.pid) not in rest


def test_a_begin_where_a_span_is_wanted(start, root):
    target = start("probes/workload.rb")
    first, rest, code = hint_of("latency", target.pid, "work__begin")
    assert first == (
        "rbtrace-py: load:work__begin is the begin of a span and has no duration"
    )
    assert (rest, code) == ("Use the name of the span: load:work", 2)


def test_a_declined_hazard_is_not_reported_again(start, root):
    target = start("probes/late.rb")
    if not if_ruby_has("cmethod__entry"):
        return
    seen = Terminal("count", target.pid, "ruby:cmethod__entry", "-d", "1")
    try:
        seen.read_until("anyway")
        seen.type("n\n")
        said, code = seen.finish()
    finally:
        seen.close()
    assert said.count("freed memory") == 1
    assert said.endswith("rbtrace-py: not confirmed\r\n")
    assert code == 1
    assert "true" not in target.step("enabled")


def test_commands_in_hints_name_the_process(start, root):
    target = start("probes/late.rb")
    _, rest, code = hint_of("count", target.pid, "checkout")
    assert (rest, code) == (f"List all probes with `rbtrace-py probes {target.pid}`", 4)


def test_matches_are_listed_if_another_word_has_none(start, root):
    target = start("probes/late.rb")
    out, err, code = run("probes", target.pid, "late:*", "nosuch*")
    assert (code, "first" in out) == (4, True)
    assert err.startswith("rbtrace-py: no probe matches nosuch*\n")
    out, _, code = run("probes", target.pid, "late:*", "nosuch*", "--json")
    assert (code, [one["name"] for one in json.loads(out)["probes"]]) == (4, ["first"])
