"""``calls --record``, and what ``report`` makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from test_calls import TREES, masked

from conftest import Target, Tracer, run
from rbtrace_py.aggregate.callrecording import CallsRecording

Trace = Callable[..., Tracer]


@pytest.fixture
def recording(start: Callable[..., Target], trace: Trace, tmp_path: Path) -> Path:
    """Of the steps ``trees`` and ``fibers``."""
    path = tmp_path / "shop.rbrec"
    target = start("calls.rb")
    tracer = trace("calls", target.pid, "--record", path)
    target.step("trees")
    target.step("fibers")
    out, err, code = tracer.finish()
    assert (out, code) == ("", 0), err
    assert f"wrote {path}" in err
    assert "32 calls" in err
    return path


def test_reports(recording: Path) -> None:
    """Each format, of one recording."""
    out, err, code = run("report", recording, "--threads")
    tree = TREES.splitlines()
    assert (masked(out).splitlines()[1 : len(tree) + 1], err, code) == (tree, "", 0)
    out, _, _ = run("report", recording, "--format", "folded")
    lines = [line.rpartition(" ")[0] for line in out.splitlines()]
    names = [";".join(f.split()[0] for f in line.split(";")) for line in lines]
    assert "Object#trees;Plain#factorial;Plain#factorial;Plain#factorial" in names
    out, _, _ = run("report", recording, "--format", "summary")
    assert "32 calls" in out
    for name, extension in (
        ("chrome", ".trace.json"),
        ("speedscope", ".speedscope.json"),
        ("perfetto", ".perfetto-trace"),
        ("flamegraph", ".svg"),
    ):
        out, err, code = run("report", recording, "--format", name)
        path = recording.with_suffix(extension)
        assert (out, code) == ("", 0), err
        assert f"wrote {path}" in err
        assert b"Plain#factorial" in path.read_bytes()
    chrome = json.loads(recording.with_suffix(".trace.json").read_text())
    slices = [e for e in chrome["traceEvents"] if e["ph"] == "X"]
    assert len(slices) == 32
    scope = json.loads(recording.with_suffix(".speedscope.json").read_text())
    assert sum(len(p["events"]) for p in scope["profiles"]) == 64


def test_filters_and_differences(recording: Path) -> None:
    assert run("report", recording, "--pid", "1")[0] == ""
    _, err, code = run("report", recording, "--state", "running")
    assert ("no states" in err, code) == (True, 2)
    _, err, code = run("report", "--diff", recording, recording)
    assert code == 0, err


def test_it_is_whole_when_the_tracer_is_killed(
    start: Callable[..., Target], trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "a.rbrec"
    target = start("calls.rb")
    tracer = trace("calls", target.pid, "--record", path)
    while not list(CallsRecording(path)):
        target.step("last")
    tracer.process.kill()
    tracer.process.wait()
    out, err, code = run("report", path)
    lines = set(masked(out).splitlines())
    assert lines
    assert lines <= {"Tiny#last", "Tiny#last <>"}
    assert ("was not closed" in err, code) == (True, 0)


def test_what_goes_wrong(
    start: Callable[..., Target], tmp_path: Path, recording: Path
) -> None:
    target = start("calls.rb")
    _, err, code = run("calls", target.pid, "--record", tmp_path / "no" / "a")
    assert ("no/a: No such file" in " ".join(err.split()), code) == (True, 1)
    _, err, code = run("calls", target.pid, "--record", "a", "--json")
    assert ("--record goes neither" in err, code) == (True, 2)
    _, err, code = run("calls", target.pid, "--record", "/dev/full")
    assert ("No space left" in err, code) == (True, 1)
    assert target.step("armed") == "done no"
