"""``report`` of calls of several threads, by its command line."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rbtrace_py.aggregate.call_interpreter import HookedProcess
from rbtrace_py.cli.main import main
from rbtrace_py.model.calls import (
    CalledMethod,
    CallRecord,
    MethodKind,
    RingStep,
    TickScale,
)
from rbtrace_py.model.recording_meta import CALLS_MODE, Meta
from rbtrace_py.model.switches import Switch, SwitchKind
from rbtrace_py.recording.call_writer import CallsWriter, RecordedStep

ENTRY, RETURN, STACK, PLACE = 1, 2, 11, 12
PID, START = 4, 1_700_000_000_000_000_000
TIDS = (70, 71)
METHOD = CalledMethod(MethodKind.RUBY, "A", False, "a", "/a.rb", 7)


def steps() -> Iterator[RingStep]:
    """Two calls of each thread, one thread after the other."""
    time = START
    for stream, tid in enumerate(TIDS):
        records: list[CallRecord] = [
            (time, stream + 1, 0, STACK, 0),
            (0xEC, tid, 0, PLACE, 0),
        ]
        for _ in range(2):
            time += 1_000_000
            records += [(time, 0, 0, ENTRY, 0), (time + 1_000, 0, 0, RETURN, 0)]
        data = b"".join(struct.pack("<QIHBB", *record) for record in records)
        yield RingStep(time + 1_000, [(stream, data)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Switches are reported before the calls, and names arrive with the calls."""
    path = tmp_path / "a.rbrec"
    names: dict[tuple[int, int], str] = {}
    switches = [
        [Switch(PID, tid, START, SwitchKind.FOUND, "R") for tid in TIDS],
        [Switch(PID, tid, START + 1_000, SwitchKind.ON, "", 0) for tid in TIDS],
    ]

    def ask(thread: tuple[int, int]) -> None:
        names[thread] = f"worker {thread[1]}"

    meta = Meta(
        started_ns=START, unit="ns", mode=CALLS_MODE, engine="agent", pids=(PID,)
    )
    source = lambda: switches.pop(0) if switches else []  # noqa: E731
    process = HookedProcess(PID, TickScale(START, START, 1, 1))
    with CallsWriter(path, meta, names, source, ask) as writer:
        for step, tid in zip(steps(), TIDS, strict=True):
            told = RecordedStep(process, step, [METHOD], frozenset({tid}))
            writer.tell(told, step.complete)
    return path


def report(path: Path, *words: str, code: int = 0) -> str:
    output = path.with_suffix(".out")
    with pytest.raises(SystemExit) as ended:
        main(["report", str(path), *words, "-o", str(output)])
    assert (ended.value.code or 0) == code
    return output.read_text("utf-8", "replace")


@pytest.mark.parametrize("format_", ["calls", "chrome", "summary"])
@pytest.mark.parametrize(
    ("words", "has"), [("--pid=9", "4"), ("--thread=zz", "worker 70, worker 71")]
)
def test_a_thread_that_is_not_there(
    format_: str, words: str, has: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(path), words, "--format", format_, "-o", f"{path}.out"])
    assert ended.value.code == 4
    err = capsys.readouterr().err
    assert err.startswith("rbtrace-py: there is no ")
    assert err.endswith(f"\n  Use one of {has}\n")
    assert not Path(f"{path}.out").exists()


def test_names_in_every_format(path: Path) -> None:
    lines = report(path, "--format", "folded", "--threads").splitlines()
    folded = [f"[worker {tid}, tid {tid}];A#a /a.rb 2000" for tid in TIDS]
    assert sorted(lines) == folded
    document = json.loads(report(path, "--format", "json"))
    named = {thread["tid"]: thread["name"] for thread in document["threads"]}
    assert named == {tid: f"worker {tid}" for tid in TIDS}
    scope = json.loads(report(path, "--format", "speedscope"))
    tracks = {f"worker {tid} {tid}" for tid in TIDS}
    assert {profile["name"] for profile in scope["profiles"]} == tracks
    tracks |= {f"{track} CPU" for track in tracks}
    events = json.loads(report(path, "--format", "chrome"))["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert sorted(names) == sorted(tracks)
    perfetto = report(path, "--format", "perfetto")
    assert [track for track in tracks if track not in perfetto] == []
    readable = report(path, "--format", "readable")
    heads = [f"pid 4 [worker {tid}, tid {tid}] calls (2.00 µs)" for tid in TIDS]
    assert [line for line in readable.splitlines() if "[worker 7" in line] == heads
    grouped = report(path, "--threads").splitlines()
    heads = [f"--- thread {tid} worker {tid}" for tid in TIDS]
    assert [line for line in grouped if line.startswith("---")] == heads


def test_switches_of_the_selected_threads(path: Path) -> None:
    """Switches before the first call, which provides the name, are included."""
    words = ("--format", "chrome", "--thread", "71")
    events = json.loads(report(path, *words))["traceEvents"]
    spans = [event["name"] for event in events if event.get("cat") == "cpu"]
    assert spans == ["Runnable", "Running (CPU 0)"]


def test_each_line_has_its_thread_where_there_are_several(path: Path) -> None:
    """This holds from the first line on, as the reader knows which threads follow."""
    lines = [line.split() for line in report(path).splitlines()]
    assert lines == [
        [str(tid), "A#a", "<1.00", "µs>"] for tid in TIDS for _ in range(2)
    ]
    for words in (("--thread", "70"), ("--pid", "4", "--thread", "71")):
        lines = [line.split() for line in report(path, *words).splitlines()]
        assert lines == 2 * [["A#a", "<1.00", "µs>"]]


@pytest.mark.parametrize(
    ("reason", "detail"), [("cut off", ""), ("damaged", " (a checksum is wrong)")]
)
def test_an_incomplete_recording(
    path: Path, reason: str, detail: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The listing ends with it, JSON has it, and the exit code is always 5."""
    data = path.read_bytes()
    changed = bytes([data[-21] ^ 1]) if reason == "damaged" else b""
    end = data[-20:] if changed else b""
    path.write_bytes(data[:-21] + (changed or data[-21:-20]) + end)
    text = (
        f"{reason} at 2023-11-14 22:13:20 UTC{detail}: the rest of the file is missing"
    )
    assert report(path, code=5).splitlines()[-1] == f"*** {text}"
    document = json.loads(report(path, "--format", "json", code=5))
    assert document["incomplete"]["reason"] == reason
    assert report(path, "--format", "summary", code=5).splitlines()[-1] == f"  {text}"
    capsys.readouterr()
    for format_ in ("chrome", "perfetto", "speedscope", "folded", "calls"):
        report(path, "--format", format_, code=5)
        said = " ".join(capsys.readouterr().err.split())
        assert f"{path}: {text}" in said, format_
