"""Growing sets of probes and processes, and targets that change during tracing."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from commands import answer, by_key, if_ruby_has, run
from processes import LIB, MAIN, ROOT, Target
from rbtrace_py.bpf import compiler
from rbtrace_py.linux.probes import find_probes
from rbtrace_py.session.probes import session
from rbtrace_py.session.probes.count import Count
from rbtrace_py.session.targets.targets import Targets

INTEGER, STRING = 1, 2


def until_traced(target, name, provider="made"):
    """Wait until the tracer finds a probe. Earlier events are not counted."""
    while True:
        out, _, _ = run("probes", target.pid, f"{provider}:{name}", "--json")
        if json.loads(out)["probes"][0]["traced"]:
            return


def test_a_busy_target_does_not_hold_the_tracer(root, start, trace):
    """Events arrive faster than they are printed, but the tracer ends in time."""
    target = start("probes/busy.rb")
    tracer = trace("trace", target.pid, "busy:event", "--duration", "0.3")
    out, err, code = tracer.result()
    assert "event" in err
    assert out.count("\n") > 100
    assert code in (0, 5)


def test_another_provider_gets_the_name_later(craft, trace):
    """A bare name selects every provider that has it, even one that is defined
    later."""
    first, second = craft(), craft()
    first.told("define", "a", "x", 0, [["n", INTEGER, 0]])
    pids = f"{first.pid},{second.pid}"
    tracer = trace("count", pids, "x", "--json")
    second.told("define", "b", "x", 0, [["n", INTEGER, 0]])
    until_traced(second, "x", "b")
    second.told("fire", "x", [1], 5)
    first.told("fire", "x", [1], 2)
    counts = {g["series"]: g["count"] for g in answer(tracer)["groups"]}
    assert counts == {"a:x": 2, "b:x": 5}


def test_a_probe_that_does_not_fit_costs_only_itself(craft, trace):
    target = craft()
    target.told("define", "a", "x", 0, [["n", INTEGER, 0]])
    tracer = trace("count", target.pid, "a:*", "--by", "n", "--json")
    target.told("fire", "x", [7], 3)
    target.told("define", "a", "y", 0, [["n", STRING, 0]])
    target.told("define", "a", "z", 0, [["n", INTEGER, 0]])
    until_traced(target, "z", "a")
    target.told("fire", "y", ["text"], 3)
    target.told("fire", "z", [8], 4)
    document = answer(tracer)
    assert by_key(document) == {7: 3, 8: 4}
    assert document["counters"]["not_traced"] == 1
    assert document["counters"]["late_probes"] == 1


def test_a_probe_of_an_old_image_in_one_of_several(craft, trace):
    """It changes no mapping. Only the image's notes show it."""
    first, second = craft(), craft()
    first.told("define", "made", "later", 0, [])
    second.told("define", "made", "other", 0, [])
    tracer = trace("count", f"{first.pid},{second.pid}", "later", "--json")
    second.told("define", "made", "later", 0, [])
    until_traced(second, "later")
    second.told("fire", "later", [], 5)
    assert answer(tracer)["count"] == 5


def test_a_late_probe_shows_all_its_operands(craft, trace):
    target = craft()
    target.told("define", "a", "x", 0, [["n", INTEGER, 0]])
    tracer = trace("trace", target.pid, "a:*", "--json")
    names = [[f"t{n}", STRING, 0] for n in range(6)]
    target.told("define", "a", "y", 0, names)
    until_traced(target, "y", "a")
    target.told("fire", "y", [str(n) for n in range(6)], 1)
    events = [json.loads(line) for line in tracer.finish()[0].splitlines()]
    assert events[0]["arguments"] == {f"t{n}": str(n) for n in range(6)}
    assert events[0]["unreadable"] == []


def test_children_that_come_and_go(start, trace):
    """No child is mistaken for a later one, and no data of ended children is kept."""
    target = start("probes/forking.rb")
    words = ["fork:child", *if_ruby_has("gc__mark__begin"), "--subprocesses"]
    tracer = trace("count", target.pid, *words, "--json")
    held = []
    for _ in range(3):
        target.step("40")
        held.append(len(os.listdir(f"/proc/{tracer.process.pid}/fd")))
    document = answer(tracer)
    counts = {g["series"]: g["count"] for g in document["groups"]}
    assert counts["fork:child"] == 120
    assert document["counters"]["no_room"] == 0
    assert max(held) < 60


def test_nan_is_one_key_and_is_counted_once(craft, trace):
    target = craft()
    target.told("define", "made", "x", 0, [["f", 4, 0]])
    words = ["x", "--by", "f", "--interval", "0.1", "--json"]
    tracer = trace("count", target.pid, *words)
    target.told("fire", "x", [0x7FF8000000000001], 3)
    target.told("fire", "x", [0x3FF8000000000000], 2)
    out, _, _ = tracer.finish()
    groups = [g for line in out.splitlines() for g in json.loads(line)["groups"]]
    assert sum(group["count"] for group in groups) == 5


def test_open_begins_are_as_they_are_now(craft, trace):
    target = craft()
    for name in ("open", "close"):
        target.told("define", "made", name, 0, [])
    words = ["open..close", "--interval", "0.1", "--json"]
    tracer = trace("latency", target.pid, *words)
    target.told("fire", "open", [], 2)
    target.told("fire", "close", [], 1)
    out, _, _ = tracer.finish()
    assert json.loads(out.splitlines()[-1])["counters"]["open_begins"] == 1
    out, err, code = run("latency", target.pid, "made:open..open")
    assert (out, code) == ("", 2)
    assert "both ends are made:open" in err


def test_one_group_a_series_without_by(craft, trace):
    target = craft()
    target.told("define", "a", "x", 0, [])
    target.told("define", "a", "y", 0, [])
    tracer = trace("count", target.pid, "a:*", "--interval", "0.1", "--json")
    target.told("fire", "x", [], 3)
    for line in tracer.finish()[0].splitlines():
        groups = json.loads(line)["groups"]
        assert [(g["series"], g["key"]) for g in groups] == [
            ("a:x", None),
            ("a:y", None),
        ]


def test_spans_out_of_range_are_no_outcomes(craft, trace):
    target = craft()
    span = [["duration_ns", INTEGER, 1], ["outcome", INTEGER, 2]]
    target.told("define", "made", "work__end", 2, span)
    tracer = trace("latency", target.pid, "work", "--json")
    target.told("fire", "work__end", [-1, 1], 3)
    counters = answer(tracer)["counters"]
    assert (counters["raised"], counters["running_at_attach"]) == (0, 3)


SITES = """
#define PROBE(name, args, code) \\
  asm volatile("990: " code "\\n" \\
    ".pushsection .note.stapsdt,\\"?\\",\\"note\\"\\n.balign 4\\n" \\
    ".4byte 992f-991f,994f-993f,3\\n991: .asciz \\"stapsdt\\"\\n992: .balign 4\\n" \\
    "993: .8byte 990b\\n.8byte 0\\n.8byte 0\\n" \\
    ".asciz \\"odd\\"\\n.asciz \\"" name "\\"\\n.asciz \\"" args "\\"\\n" \\
    "994: .balign 4\\n.popsection\\n")
#include <stdio.h>
int main(void) {
  char line[100];
  puts("ready"); fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    PROBE("fine", "8@$7 8f@%xmm0 8@foo(%rip)", "nop");
    if (line[0] == 'x') { PROBE("bad", "", ".byte 0x06"); }
    puts("done"); fflush(stdout);
  }
}
"""


@pytest.fixture
def odd(root, tmp_path):
    """A program with a site that cannot be probed and operands out of range."""
    source = tmp_path / "odd.c"
    source.write_text(SITES)
    subprocess.run(["gcc", "-o", tmp_path / "odd", source], check=True)
    target = Target(str(tmp_path / "odd"))
    yield target
    target.close()


def test_a_site_that_cannot_be_probed_costs_only_itself(odd, trace):
    tracer = trace("count", odd.pid, "odd:*", "--json")
    odd.step()
    document = answer(tracer)
    counts = {g["series"]: g["count"] for g in document["groups"]}
    assert counts["odd:fine"] == 1
    assert document["counters"]["not_traced"] == 1
    out, err, code = run("count", odd.pid, "odd:bad")
    assert (out, code) == ("", 1)
    assert "odd:bad" in err


def test_operands_out_of_reach_are_unreadable(odd, trace):
    tracer = trace("trace", odd.pid, "odd:fine", "--json")
    chosen = trace("trace", odd.pid, "odd:fine", "--filter", "arg2 == 0", "--json")
    odd.step()
    event, end = map(json.loads, tracer.finish()[0].splitlines())
    assert event["arguments"] == {"arg0": 7, "arg1": None, "arg2": None}
    assert event["unreadable"] == ["arg1", "arg2"]
    assert end["count"] == 1
    (end,) = map(json.loads, chosen.finish()[0].splitlines())
    assert end["counters"]["unreadable"] == 1


def test_a_full_disk(start, trace):
    target = start("probes/late.rb")
    tracer = trace("count", target.pid, "late:first", "-o", "/dev/full")
    out, err, code = tracer.finish()
    assert (out, code) == ("", 1)
    assert "No space left" in err
    assert "Traceback" not in err


def test_a_file_is_kept_when_nothing_can_be_attached(start, root, tmp_path):
    target = start("probes/late.rb")
    path = tmp_path / "keep.txt"
    path.write_text("precious")
    assert run("count", target.pid, "nothing", "-o", path)[2] == 4
    assert path.read_text() == "precious"


def test_waiting_ends_with_the_duration(start, root):
    target = start("probes/late.rb")
    out, err, code = run("count", target.pid, "never", "--wait", "--duration", "0.2")
    assert (out, code) == ("", 4)
    assert "never" in err


def test_a_command_that_ends_before_it_has_probes(root):
    words = ["count", "x", "--", "ruby", f"-I{LIB}", "-e", "1"]
    out, err, code = run(*words)
    assert (out, code) == ("", 4)
    assert "exited before" in err


def test_a_cache_of_somebody_elses_is_not_used(start, trace, tmp_path):
    """Its contents would be loaded into the kernel."""
    place = tmp_path / "cache" / "programs"
    place.mkdir(parents=True)
    os.chown(place.parent, 65534, 65534)
    target = start("probes/late.rb")
    env = {"RBTRACE_CACHE_DIR": str(place.parent)}
    tracer = trace("count", target.pid, "late:first", "--json", env=env)
    assert target.step("fire first 2") == "done 2"
    assert answer(tracer)["count"] == 2
    assert os.listdir(place) == []


def test_a_damaged_cache_is_made_anew(start, trace, tmp_path):
    target = start("probes/late.rb")
    env = {"RBTRACE_CACHE_DIR": str(tmp_path)}
    for damage in (b"", b"{}", b'{"on_hit": ["00", [[5, "sites"]]]}', None):
        tracer = trace("count", target.pid, "late:first", "--json", env=env)
        target.step("fire first 1")
        assert answer(tracer)["count"] == 1
        (entry,) = (tmp_path / "programs").iterdir()
        if damage is not None:
            entry.write_bytes(damage)


def test_a_cache_that_cannot_be_written_is_left_as_it_was(tmp_path, monkeypatch):
    """A partial file is removed, as on a full disk."""
    monkeypatch.setenv("RBTRACE_CACHE_DIR", str(tmp_path))
    compiled = {"on_hit": bytes(80_000)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        compiler._store("a", compiled)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.rglob("*")] == ["programs"]
    compiler._store("a", compiled)
    assert compiler._load("a") == compiled


def test_a_target_that_executes_another_program(start, trace):
    """The new program's probes, from another file, are found."""
    target = start("probes/exec.rb")
    tracer = trace("count", target.pid, "exec:one", "--json")
    assert target.step("fire 3") == "done 3"
    assert target.step("exec") == "done"
    until_traced(target, "one", "exec")
    assert target.step("fire 4") == "done 4"
    document = answer(tracer)
    assert document["count"] == 7
    assert document["counters"]["late_probes"] == 1


@pytest.mark.parametrize("moment", [1, 2])
def test_a_probe_that_comes_while_probes_are_read(moment, start, root, monkeypatch):
    """The next refresh finds it, before and after the process's probes are cached."""
    target = start("probes/late.rb")
    reads = []

    def read(process, cache):
        found = find_probes(process, cache)
        reads.append(process.pid)
        if len(reads) == moment:
            assert target.step("define second") == "done"
        return found

    monkeypatch.setattr(session, "find_probes", read)
    with Count(Targets.from_pids([target.pid]), ["late:*"]) as count:
        count.refresh()
        assert {probe.name for probe in count.probes} == {"first", "second"}


def test_several_names_at_one_site(root, tmp_path, trace):
    source = tmp_path / "twin.c"
    twin = 'PROBE("fine", "8@$7 8f@%xmm0 8@foo(%rip)", "nop");'
    both = 'PROBE("one", "8@$1", "") PROBE("two", "8@$2", "nop")'
    source.write_text(SITES.replace(twin, both.replace(") P", "); P") + ";"))
    subprocess.run(["gcc", "-o", tmp_path / "twin", source], check=True)
    target = Target(str(tmp_path / "twin"))
    try:
        tracer = trace("trace", target.pid, "odd:one", "odd:two", "--json")
        target.step()
        events = [json.loads(line) for line in tracer.finish()[0].splitlines()[:-1]]
        seen = sorted((e["probe"], e["arguments"]["arg0"]) for e in events)
        assert seen == [("odd:one", 1), ("odd:two", 2)]
    finally:
        target.close()


def test_closed_standard_streams(start, root):
    target = start("probes/late.rb")
    words = [sys.executable, "-c", MAIN, "probes", str(target.pid)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}
    for closed, code in (("<&- >/dev/null 2>&-", 0), ("<&- >&- 2>&-", 1)):
        shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
        assert subprocess.run(shell, env=env, timeout=60).returncode == code
