"""Several processes in one listing and in one trace."""

from __future__ import annotations

import json

from commands import run


def test_equal_probes_are_listed_once(start, trace):
    """Each process has its own image, and they share Ruby's library."""
    targets = [start("probes/late.rb") for _ in range(3)]
    targets[1].step("define second")
    pids = ",".join(str(target.pid) for target in targets)
    tracer = trace("count", targets[2].pid, "late:first")
    out, _, code = run("probes", pids, "late:*", "--json")
    assert code == 0
    found = {probe["name"]: probe for probe in json.loads(out)["probes"]}
    assert found["first"]["pids"] == [target.pid for target in targets]
    assert found["second"]["pids"] == [targets[1].pid]
    assert found["first"]["traced"] is True
    assert len(json.loads(out)["probes"]) == len(found) == 2
    out, _, code = run("probes", pids, "late:*")
    assert "1 site in 3 processes" in out
    assert "1 site in 1 process\n" in out
    assert out.endswith("2 probes in 3 processes, 1 traced now (●)\n")
    assert tracer.finish()[2] == 0


def test_a_trace_of_several_shows_whose_threads(start, trace):
    targets = [start("probes/late.rb") for _ in range(2)]
    pids = ",".join(str(target.pid) for target in targets)
    tracer = trace("trace", pids, "late:first", "--count", "2")
    for target in targets:
        target.step("fire first 1")
    out, _, code = tracer.result()
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()] == [
        f"{target.pid}/{target.pid}" for target in targets
    ]


def test_a_trace_of_one_shows_its_threads(start, trace):
    target = start("probes/late.rb")
    tracer = trace("trace", target.pid, "late:first", "--count", "1")
    target.step("fire first 1")
    out, _, _ = tracer.result()
    assert out.split()[1] == str(target.pid)
