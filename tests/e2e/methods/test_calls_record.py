"""``calls --record`` and the reports of its recordings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from test_calls import TREES, masked

from commands import Tracer, run
from processes import LIB, MAIN, ROOT, TARGETS, TIMEOUT, Target
from rbtrace_py.aggregate.calls import CallEventKind
from rbtrace_py.model.switches import Switch
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.call_segments import segments_in

Trace = Callable[..., Tracer]


@pytest.fixture
def recording(start: Callable[..., Target], trace: Trace, tmp_path: Path) -> Path:
    """A recording of the steps ``trees`` and ``fibers``."""
    path = tmp_path / "shop.rbrec"
    target = start("methods/calls.rb")
    tracer = trace("calls", target.pid, "-o", path)  # the suffix makes it a recording
    target.step("trees")
    target.step("fibers")
    out, err, code = tracer.finish()
    assert (out, code) == ("", 0), err
    assert f"wrote {path}" in err
    assert "32 calls" in err
    return path


def test_reports(recording: Path) -> None:
    """Each format of one recording."""
    out, err, code = run("report", recording, "--threads")
    tree = TREES.splitlines()
    assert (masked(out).splitlines()[1 : len(tree) + 1], err, code) == (tree, "", 0)
    out, _, _ = run("report", recording, "--format", "folded")
    lines = [line.rpartition(" ")[0] for line in out.splitlines()]
    names = [";".join(f.split()[0] for f in line.split(";")) for line in lines]
    assert "Object#trees;Plain#factorial;Plain#factorial;Plain#factorial" in names
    out, _, _ = run("report", recording, "--format", "summary")
    assert "32 calls" in out
    # The path is relative to the target's working directory, which is this one.
    path = (TARGETS / "methods/calls.rb").relative_to(Path.cwd())
    assert f"  Plain#factorial {path}\n" in out
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
    slices = [e for e in chrome["traceEvents"] if e.get("cat") == "call"]
    assert len(slices) == 32
    scope = json.loads(recording.with_suffix(".speedscope.json").read_text())
    assert sum(len(p["events"]) for p in scope["profiles"]) == 64


LINE = re.compile(r" *(?:\d+ )? *(\S+) <([\d.]+) cpu ([\d.]+)>")


BURNT = 0.375
"""Minimum seconds on a CPU of a call that burns 0.4 s by its thread's own clock. The
call begins some µs before the switch is reported, and a busy machine has hundreds of
switches.
"""


def cpu_of(path: Path) -> list[tuple[str, float, float]]:
    """Return each call's method, its duration, and its time on a CPU, in seconds."""
    out, err, code = run("report", path, "--cpu", "--rbtrace-times")
    assert (err, code) == ("", 0)
    found = map(LINE.fullmatch, out.splitlines())
    return [(m[1], float(m[2]), float(m[3])) for m in found if m]


def spans_of(path: Path) -> dict[int, list[tuple[str, float, float]]]:
    """Return by thread each CPU span's name, start, and end in seconds."""
    out, err, code = run("report", path, "--format", "chrome", "-o", "-")
    assert (err, code) == ("", 0)
    events = json.loads(out)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: dict[int, list[tuple[str, float, float]]] = {}
    for event in events:
        if event.get("cat") == "cpu":
            tid = int(names[event["tid"]].split()[-2])
            start, end = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
            found.setdefault(tid, []).append((event["name"], start, end))
    return found


def test_on_and_off_cpu(
    start: Callable[..., Target], trace: Trace, tmp_path: Path
) -> None:
    """Sleeping is off-CPU, burning is on-CPU, and of two busy threads, one waits."""
    path = tmp_path / "shop.rbrec"
    target = start("methods/calls.rb")
    words = ("-m", "Timed#waits", "Timed#burns", "--record", path)
    tracer = trace("calls", target.pid, *words)
    for word in ("waits", "burns", "contend"):
        target.step(word)
    _, err, code = tracer.finish()
    assert ("CPU" in err, code) == (False, 0), err
    slept, *burnt = cpu_of(path)
    assert (slept[0], [b[0] for b in burnt]) == ("Timed#waits", 3 * ["Timed#burns"])
    assert slept[1] >= 1 > 2 * slept[2]
    assert min(on_cpu for _, _, on_cpu in burnt) >= BURNT, burnt
    assert all(took >= on_cpu for _, took, on_cpu in burnt)
    found = spans_of(path)
    for spans in found.values():
        assert all(abs(a[2] - b[1]) < 1e-5 for a, b in pairwise(spans))
    out, _, _ = run("report", path, "--format", "json")
    document = json.loads(out)
    cpu = {each["tid"]: each for each in document["cpu"]}
    assert cpu.keys() == found.keys()
    assert document["switches_lost"] == 0
    tids = {t["tid"] for t in document["threads"]} - {target.pid}
    assert len(tids) == 2
    for tid in (target.pid, *tids):
        assert cpu[tid]["running_ns"] >= BURNT * 1e9
    assert cpu[target.pid]["sleeping_ns"] >= 500_000_000
    first, second = (
        [s for s in found[tid] if s[0].startswith("Running")] for tid in tids
    )
    both = sum(
        max(0.0, min(a[2], b[2]) - max(a[1], b[1])) for a in first for b in second
    )
    # The GVL lets only one of them run, but handing it over takes a moment.
    assert both < 0.2


def test_children_have_their_own(
    start: Callable[..., Target], trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "shop.rbrec"
    target = start("methods/calls.rb")
    words = ("--subprocesses", "-m", "Timed#burns", "--record", path)
    tracer = trace("calls", target.pid, *words)
    child = int(target.step("fork to burn").split()[1])
    _, err, code = tracer.finish()
    assert code == 0, err
    switches = [e for e in CallsRecording(path).timeline() if isinstance(e, Switch)]
    assert {each.pid for each in switches} == {target.pid, child}
    ((name, _, on_cpu),) = cpu_of(path)
    assert (name, on_cpu >= BURNT) == ("Timed#burns", True)


WITHOUT_BPF = """
import ctypes, os, sys
# CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF: gone with the next exec.
for capability in (21, 38, 39): ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.mark.parametrize("is_asked", [True, False])
def test_where_it_is_not_known(root: None, is_asked: bool, tmp_path: Path) -> None:
    """Without rights, or if it is left out, this is reported, and calls are
    recorded."""
    path = tmp_path / "shop.rbrec"
    code = "sleep 0.001 until Tracepoint::Agent.armed_by; def called; end; called"
    ruby = ["ruby", f"-I{LIB}", "-rtracepoint/agent", "-e", code]
    words = ["calls", "-m", "called", "--record", str(path)]
    words += [] if is_asked else ["--no-cpu"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_BPF, MAIN, *words, "--", *ruby],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    assert done.returncode == 0, done.stderr
    is_said = "CPU times are not recorded" in done.stderr
    assert is_said is is_asked
    assert masked(run("report", path)[0]) == "Object#called <>\n"
    assert not CallsRecording(path).has_switches()
    _, err, status = run("report", path, "--cpu")
    assert ("has no CPU times" in " ".join(err.split()), status) == (True, 2)


@pytest.mark.parametrize("words", [[], ["--slow", "0.000001"]])
def test_a_call_that_was_seen_to_begin_is_seen_to_return(
    words: list[str], start: Callable[..., Target], trace: Trace, tmp_path: Path
) -> None:
    """The target makes 12,000 calls, six deep. Only some fit while no tracer reads."""
    path = tmp_path / "shop.rbrec"
    target = start("methods/calls.rb")
    options = ("-m", "Plain.tower", "--buffer", "1024", "--no-cpu", *words)
    tracer = trace("calls", target.pid, *options, "--record", path)
    tracer.process.send_signal(signal.SIGSTOP)
    target.step("towers")
    tracer.process.send_signal(signal.SIGCONT)
    _, err, code = tracer.finish()
    events = [each.event for each in CallsRecording(path)]
    found = Counter(event.what for event in events)
    lost = sum(event.count for event in events if event.what is CallEventKind.LOST)
    assert found[CallEventKind.ENTERED] > 400
    assert found[CallEventKind.ENTERED] == found[CallEventKind.RETURNED]
    assert found[CallEventKind.ENDED] == 0
    assert 2 * found[CallEventKind.ENTERED] + lost <= 2 * 12_000
    assert (f"{24_000 - 2 * found[CallEventKind.ENTERED]:,} events" in err, code) == (
        True,
        5,
    )


def number_of_last(folder: Path) -> int:
    """Return the number of the newest segment, as in ``…-000012.rbrec``."""
    return int(segments_in(folder)[-1].stem.rpartition("-")[2])


def test_a_flight_recorder(
    start: Callable[..., Target], trace: Trace, tmp_path: Path
) -> None:
    """The folder of slow calls can be read during the recording and after a kill."""
    folder = tmp_path / "slow"
    target = start("methods/calls.rb")
    words = ("--slow", "0.000001", "--keep", "1h", "--max-size", "2MB", "--no-cpu")
    tracer = trace("calls", target.pid, "-m", "Plain.", *words, "--record", folder)
    _, err, code = run("calls", target.pid, *words, "--record", folder)
    assert ("armed by process" in err, code) == (True, 1), err
    while number_of_last(folder) < 12:
        target.step("towers")
    out, err, code = run("report", folder)
    assert ("Plain.tower" in out, code) == (True, 0), err
    assert "is still being written" in err
    tracer.process.kill()
    tracer.process.wait()
    (folder / "20000101T000000-000001.rbrec").touch()  # as a full disk leaves one
    assert sum(path.stat().st_size for path in segments_in(folder)) < 12 << 20
    out, err, code = run("report", folder, "--format", "summary")
    assert code == 5, err
    last = segments_in(folder)[-1].name
    assert re.search(rf"\n  cut off at .+ UTC \({last}\): .+ missing\n\Z", out), out


def test_a_flight_recorder_whose_disk_is_full(
    start: Callable[..., Target], trace: Trace, small_disk: Path
) -> None:
    """The summary and the report name the deletions and the start of complete data."""
    folder = small_disk / "slow"
    target = start("methods/calls.rb")
    words = ("--slow", "0.000001", "--keep", "1h", "--max-size", "512KB", "--no-cpu")
    tracer = trace("calls", target.pid, "-m", "Plain.", *words, "--record", folder)
    while number_of_last(folder) < 8:
        target.step("trees")
    _, err, code = tracer.finish()
    (calls,) = re.findall(r"^([\d,]+) calls$", err, re.M)
    (deleted,) = re.findall(r"^  ([\d,]+) calls deleted because the disk", err, re.M)
    (since,) = re.findall(r"complete since (.+ UTC)$", err, re.M)
    numbers = [int(number.replace(",", "")) for number in (calls, deleted)]
    left = numbers[0] - numbers[1]
    useless = 5 if numbers[1] > left else 0
    assert ("no losses" not in err, code) == (True, useless), err
    said = f"{deleted} calls deleted because the disk was full"
    said += f": the folder is complete since {since}"
    out, err, code = run("report", folder, "--format", "summary")
    assert f"  {left:,} calls in " in out
    assert (out.splitlines()[-1], code) == (f"  {said}", useless), out
    out, err, code = run("report", folder)
    assert (out.splitlines()[-1], code) == (f"*** {said}", useless)
    out, err, code = run("report", folder, "--format", "json")
    assert json.loads(out)["deleted"] == numbers[1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--record", "x", "--keep", "1h"], "--keep needs --record and --slow"),
        (["--slow", "1", "--keep", "1h"], "--keep needs --record and --slow"),
        (["--slow", "1", "--record", "/"], "is a directory; name a file, or give"),
        (
            ["--slow", "1", "--record", "/etc/hosts", "--keep", "1h"],
            "is not a directory",
        ),
        (
            ["--slow", "1", "--record", "x", "--keep", "1h", "--max-size", "no"],
            "is not a size",
        ),
        (
            ["--slow-methods", "x", "--record", "x", "--keep", "1h", "-n", "1"],
            "--keep and --count cannot be combined",
        ),
    ],
)
def test_folders_that_make_no_sense(
    words: list[str], text: str, start: Callable[..., Target]
) -> None:
    _, err, code = run("calls", start("methods/calls.rb").pid, *words)
    assert (text in " ".join(err.split()), code) == (True, 2), err


def test_only_so_many_calls(
    start: Callable[..., Target], trace: Trace, tmp_path: Path
) -> None:
    """More calls may arrive before the hook is removed."""
    path = tmp_path / "shop.rbrec"
    target = start("methods/calls.rb")
    tracer = trace("calls", target.pid, "--record", path, "--count", "20")
    target.step("trees")
    target.step("fibers")
    _, err = tracer.process.communicate(timeout=TIMEOUT)
    assert ("20 calls" in err, tracer.process.returncode) == (True, 0), err
    recording = CallsRecording(path)
    assert len(list(recording)) > 20
    assert (recording.statistics.samples, recording.is_complete) == (20, True)
    out, _, _ = run("report", path, "--format", "summary")
    assert "20 calls" in out


def test_filters_and_differences(recording: Path) -> None:
    assert run("report", recording, "--pid", "1")[0] == ""
    _, err, code = run("report", recording, "--state", "running")
    assert ("no states" in err, code) == (True, 2)
    _, err, code = run("report", "--diff", recording, recording)
    assert code == 0, err


def test_a_recording_is_complete_after_the_tracer_was_killed(
    start: Callable[..., Target], trace: Trace, tmp_path: Path
) -> None:
    path = tmp_path / "a.rbrec"
    target = start("methods/calls.rb")
    tracer = trace("calls", target.pid, "--record", path)
    while not list(CallsRecording(path)):
        target.step("last")
    tracer.process.kill()
    tracer.process.wait()
    out, err, code = run("report", path)
    *lines, last = masked(out).splitlines()
    assert lines
    assert set(lines) <= {"Tiny#last", "Tiny#last <>"}
    assert last.startswith("*** cut off at ")
    assert (err, code) == ("", 5)


def test_a_full_disk(
    start: Callable[..., Target], trace: Trace, small_disk: Path
) -> None:
    """The command fails, and its recording is reported as incomplete."""
    path = small_disk / "a.rbrec"
    target = start("methods/calls.rb")
    tracer = trace("calls", target.pid, "-m", "Plain.", "--no-cpu", "--record", path)
    while tracer.process.poll() is None:
        target.step("towers")
    _, err = tracer.process.communicate(timeout=TIMEOUT)
    said = " ".join(err.split())
    assert ("No space left" in said, tracer.process.returncode) == (True, 1), err
    out, _, code = run("report", path)
    assert (out.splitlines()[-1].startswith("*** cut off at "), code) == (True, 5)
    out, _, code = run("report", path, "--format", "json")
    assert (json.loads(out)["incomplete"]["reason"], code) == ("cut off", 5)


def test_errors_of_recording_and_reporting(
    start: Callable[..., Target], tmp_path: Path, recording: Path
) -> None:
    target = start("methods/calls.rb")
    _, err, code = run("calls", target.pid, "--record", tmp_path / "no" / "a")
    assert ("no/a: No such file" in " ".join(err.split()), code) == (True, 1)
    _, err, code = run("calls", target.pid, "--record", "a", "--json")
    assert ("--record cannot be combined" in err, code) == (True, 2)
    _, err, code = run("calls", target.pid, "--no-cpu")
    assert ("--no-cpu needs --record" in err, code) == (True, 2)
    _, err, code = run("report", recording, "--cpu", "--format", "folded")
    assert ("--cpu needs --format calls" in err, code) == (True, 2)
    _, err, code = run("calls", target.pid, "--record", "/dev/full")
    assert ("No space left" in err, code) == (True, 1)
    assert target.step("armed") == "done no"
