"""``report`` by its command line."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from commands import run
from rbtrace_py.aggregate.histogram import Histogram, SignedHistogram
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.model.recording_meta import RUN_TIME, Meta
from rbtrace_py.model.stacks import ThreadState
from rbtrace_py.recording.recording_filters import Filters
from rbtrace_py.recording.sample_recording import RecordingWriter
from rbtrace_py.report.exchange.hlog import HlogWriter
from rbtrace_py.report.formats import FORMATS
from rbtrace_py.report.json.results import document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.style import PLAIN
from rbtrace_py.report.terminal.results import (
    count_report,
    latency_report,
    values_report,
)
from sample_makers import START, WORKER, sample, shop


def report(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    out, err, code = run("report", *words, env={"COLUMNS": "80"}, folder=folder)
    return subprocess.CompletedProcess(words, code, out, err)


def record(
    path: Path,
    rounds: int,
    unit: str = "samples",
    mode: str = "wall",
    weights: str = "",
    engine: str = "memory",
) -> None:
    statistics = Statistics(unit, 100.0)
    meta = Meta(START, unit, 100.0, mode, "memory", (4211, 4300), "ruby shop.rb")
    meta = replace(meta, weights=weights, engine=engine)
    with RecordingWriter(path, meta, statistics) as writer:
        for sample in shop(rounds):
            writer.add(sample)
        statistics.rounds, statistics.failed = rounds, 3
        statistics.ended_ns = START + rounds * 10**7


def record_idle(path: Path) -> None:
    """Two samples of a thread that waits for work, and one of a busy thread."""
    pool = "Pool#wait@/gems/pool-1.0.0/lib/pool.rb:3"
    waits = sample(pool, "c!Thread::Queue#pop", state=ThreadState.SLEEPING)
    with RecordingWriter(path, Meta(mode="wall"), Statistics(rate=100.0)) as writer:
        for one in (waits, sample("Job#work@/app/job.rb:4", thread=WORKER), waits):
            writer.add(one)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(tmp_path / "one.rbrec", 40)
    record(tmp_path / "two.rbrec", 7)
    return tmp_path


def test_a_summary(folder: Path) -> None:
    done = report("one.rbrec", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("wall time of the threads shown: ")
    assert lines[1] == "% self  % total  name"
    assert lines[2] == " 50.00    50.00  Order#total /app/order.rb"
    assert (
        lines[-4] == "  160 samples in 0.4 s, 100.0 of 100 sampling passes per second"
    )
    assert lines[-1] == "  3 failed samples (1.8 %)"


@pytest.mark.parametrize(
    ("unit", "mode", "weights", "is_said"),
    [
        ("ns", "wall", "", True),
        ("ns", "wall", RUN_TIME, False),
        ("samples", "wall", "", False),
        ("ns", "offcpu", "", False),
    ],
)
def test_weights_of_older_recordings_are_explained(
    tmp_path: Path, unit: str, mode: str, weights: str, is_said: bool
) -> None:
    record(tmp_path / "a.rbrec", 2, unit, mode, weights)
    done = report("a.rbrec", folder=tmp_path)
    said = "a.rbrec was recorded by an older version: a method that waits may show"
    assert (said in " ".join(done.stderr.split()), done.returncode) == (is_said, 0)


def test_a_file_has_whole_names(tmp_path: Path) -> None:
    path = f"/srv/{'deep/' * 30}order.rb"
    with RecordingWriter(tmp_path / "a.rbrec", Meta(), Statistics()) as writer:
        writer.add(sample(f"Order#total@{path}:3"))
    report("a.rbrec", "--format", "summary", "-o", "a.out", folder=tmp_path)
    assert f" Order#total {path}\n" in (tmp_path / "a.out").read_text()


@pytest.mark.parametrize(
    ("words", "said", "has"),
    [
        ("--pid 1", "process 1", "4211, 4300"),
        ("--pid 9 --pid 8 --thread x", "process 8 or 9", "4211, 4300"),
        ("--thread zz", "thread whose name matches 'zz'", "(no name), main, worker 1"),
        ("--pid 4211 --thread zz", "thread whose name matches 'zz'", "main, worker 1"),
    ],
)
def test_a_thread_that_is_not_there(
    words: str, said: str, has: str, folder: Path
) -> None:
    output = folder / "kept"
    output.write_text("before")
    done = report("one.rbrec", *words.split(), "-o", "kept", folder=folder)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines() == [
        f"rbtrace-py: there is no {said} in one.rbrec",
        f"  Use one of {has}",
    ]
    assert output.read_text() == "before"
    both = report("--diff", "one.rbrec", "two.rbrec", *words.split(), folder=folder)
    assert both.returncode == 4


def test_ten_of_many_threads_are_listed() -> None:
    """Names from the program are escaped."""
    threads = [(1, f"{number:02}\x1b[31m\udcff") for number in range(12)]
    found = Filters("zz").missing("a", threads)
    assert found is not None
    names = [rf"{number:02}\x1b[31m\xff" for number in range(10)]
    assert found.hint == f"Use one of {', '.join(names)}, and 2 more"
    assert Filters("11").missing("a", threads) is None
    assert Filters("zz").missing("a", []) is None


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("flamegraph", "one.svg"),
        ("svg", "one.svg"),
        ("speedscope", "one.speedscope.json"),
        ("pprof", "one.pb.gz"),
        ("callgrind", "one.callgrind"),
    ],
)
def test_files_named_after_the_recording(folder: Path, name: str, file: str) -> None:
    done = report("one.rbrec", "--format", name, "--title", "Tea", folder=folder)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"rbtrace-py: wrote {file}\n"
    data = (folder / file).read_bytes()
    if name == "pprof":
        data = gzip.decompress(data)
    assert b"Tea" in data
    again = report("one.rbrec", "--format", name, folder=folder)
    assert again.returncode == 1
    assert again.stderr == (
        f"rbtrace-py: {file} already exists\n  Name a file with -o\n"
    )
    assert b"Tea" in (gzip.decompress if name == "pprof" else bytes)(
        (folder / file).read_bytes()
    )


def test_output(folder: Path) -> None:
    done = report("one.rbrec", "--format", "folded", "-o", "x", folder=folder)
    wrote = "rbtrace-py: wrote x\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", wrote)
    assert (folder / "x").read_text().count("\n") == 11
    done = report("one.rbrec", "--format", "flamegraph", "-o", "-", folder=folder)
    assert done.stdout.startswith("<svg ")
    assert not (folder / "one.svg").exists()
    done = report("one.rbrec", "-o", "/dev/null", folder=folder)
    assert done.stderr == ""


def test_the_recording_is_not_written_over(folder: Path) -> None:
    before = (folder / "one.rbrec").read_bytes()
    done = report("one.rbrec", "-o", "./one.rbrec", folder=folder)
    assert done.returncode == 1
    assert "would be overwritten" in done.stderr
    assert (folder / "one.rbrec").read_bytes() == before


def test_filters(folder: Path) -> None:
    def weight(*words: str) -> int:
        done = report("one.rbrec", "--format", "json", *words, folder=folder)
        found = json.loads(done.stdout)["weight"]
        assert isinstance(found, int)
        return found

    assert weight() == 200
    assert weight("--pid", "4300") == 40
    assert weight("--pid", "4300", "--pid", "4211") == 200
    assert weight("--thread", "^work") == 120
    assert weight("--thread", "^main$") == 40
    assert weight("--state", "waiting") == 80
    assert weight("--state", "waiting", "--state", "sleeping") == 120
    assert weight("--thread", "work", "--state", "running") == 40


@pytest.mark.parametrize("queued", [ThreadState.RUNNABLE, ThreadState.RUNNING])
def test_a_run_queue_is_not_running(tmp_path: Path, queued: ThreadState) -> None:
    """Older versions wrote state RUNNING for samples in a run queue."""
    method = "Job#work@/app/job.rb:4"
    with RecordingWriter(tmp_path / "a.rbrec", Meta(mode="wall"), Statistics()) as file:
        file.add(sample(method, weight=3))
        file.add(sample(method, "m!(run queue)", state=queued, weight=40))
    words = ("a.rbrec", "--format", "folded", "--states")
    running = "[running];Job#work /app/job.rb 3"
    runnable = "[runnable];Job#work /app/job.rb;(run queue) 40"
    for chosen, lines in (
        ((), [runnable, running]),
        (("--state", "running"), [running]),
        (("--state", "runnable"), [runnable]),
        (("--no-idle",), [runnable, running]),
    ):
        out = report(*words, *chosen, folder=tmp_path).stdout
        assert out.splitlines() == lines
    found = json.loads(report("a.rbrec", "--format", "json", folder=tmp_path).stdout)
    states = {row["state"]: row["weight"] for row in found["stacks"]}
    assert states == {"running": 3, "runnable": 40}
    readable = report("a.rbrec", "--format", "readable", folder=tmp_path).stdout
    assert "[main, tid 4211] runnable (40 samples)" in readable
    report("a.rbrec", "--format", "pprof", "-o", "a.pb", folder=tmp_path)
    assert b"runnable" in gzip.decompress((tmp_path / "a.pb").read_bytes())


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [
        ((), ["52.63    52.63  (run queue)", "42.11    42.11  (sleep)"]),
        (("runnable",), ["100.00   100.00  Job#work", "0.00   100.00  (run queue)"]),
        (("sleeping",), ["100.00   100.00  Kernel#sleep", "0.00   100.00  (sleep)"]),
    ],
)
def test_self_of_a_selected_wait_is_the_methods(
    tmp_path: Path, chosen: tuple[str, ...], rows: list[str]
) -> None:
    with RecordingWriter(tmp_path / "a.rbrec", Meta(mode="wall"), Statistics()) as file:
        file.add(sample("Job#work@/a.rb:4", weight=1))
        for state, frames, weight in (
            (ThreadState.RUNNABLE, ("Job#work@/a.rb:4", "m!(run queue)"), 10),
            (ThreadState.SLEEPING, ("c!Kernel#sleep@/a.rb:9", "m!(sleep)"), 8),
        ):
            file.add(sample(*frames, state=state, weight=weight))
    options = [word for state in chosen for word in ("--state", state)]
    out = report("a.rbrec", *options, folder=tmp_path).stdout
    shown = [line.strip().removesuffix(" /a.rb") for line in out.splitlines()[2:4]]
    assert shown == rows
    folded = report("a.rbrec", "--format", "folded", *options, folder=tmp_path).stdout
    assert folded.count(";(") == (1 if chosen else 2)


@pytest.mark.parametrize("option", ["--threads", "--states"])
def test_a_summary_does_not_separate(folder: Path, option: str) -> None:
    for words in ((), ("--format", "summary-by-line")):
        done = report("one.rbrec", option, *words, folder=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert "Use --format folded" in done.stderr
    assert report("one.rbrec", option, "-o", "x.svg", folder=folder).returncode == 0


def test_folding(folder: Path) -> None:
    words = ("--format", "folded", "--thread", "main", "--lines", "--threads")
    done = report("two.rbrec", *words, "--states", "--reverse", folder=folder)
    assert done.stdout.splitlines()[0] == (
        "[main, tid 4211];[running];(garbage collection);<main> /app/shop.rb:31 1"
    )


def test_readable_is_in_order(folder: Path) -> None:
    done = report("two.rbrec", "--format", "readable", "--pid", "4300", folder=folder)
    times = [line.split()[1] for line in done.stdout.splitlines() if line[:4] == "2023"]
    assert times == [f"22:13:20.0{n}0000" for n in range(7)]


CUT = "cut off at 2023-11-14 22:13:20 UTC: the rest of the file is missing"
DAMAGED = (
    "damaged at 2023-11-14 22:13:20 UTC (a checksum is wrong): the rest of the file is"
    " missing"
)


def damage(data: bytes) -> dict[str, tuple[bytes, str]]:
    """Return damaged copies of a recording, each with its message."""
    return {
        "within a block": (data[:-30], CUT),
        "between two blocks": (data[:-20], CUT),
        "a bit": (data[:-30] + bytes([data[-30] ^ 1]) + data[-29:], DAMAGED),
    }


@pytest.mark.parametrize("how", damage(bytes(40)))
def test_an_incomplete_recording(folder: Path, how: str) -> None:
    """The text ends with it, JSON has it, and the exit code is 5."""
    data, said = damage((folder / "one.rbrec").read_bytes())[how]
    (folder / "bad.rbrec").write_bytes(data)
    for format_ in ("summary", "readable"):
        done = report("bad.rbrec", "--format", format_, folder=folder)
        assert (done.returncode, done.stderr) == (5, "")
        assert done.stdout.splitlines()[-1] == f"  {said}"
        assert "no losses" not in done.stdout
    reason, _, _ = said.partition(" at ")
    done = report("bad.rbrec", "--format", "json", folder=folder)
    document = json.loads(done.stdout)
    assert done.returncode == 5
    assert document["incomplete"] == {
        "reason": reason,
        "at_ns": document["ended_ns"],
        "detail": "a checksum is wrong" if reason == "damaged" else "",
    }


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_says_that_a_recording_is_cut_off(
    folder: Path, format_: str
) -> None:
    data = (folder / "one.rbrec").read_bytes()
    (folder / "cut.rbrec").write_bytes(data[:-20])
    done = report("cut.rbrec", "--format", format_, "-o", "out", folder=folder)
    said = " ".join(done.stderr.split())
    assert (done.returncode, f"cut.rbrec: {CUT}" in said) == (5, True)
    done = report("one.rbrec", "--format", format_, "-o", "out", folder=folder)
    assert (done.returncode, done.stderr) == (0, "rbtrace-py: wrote out\n")


def test_a_difference_to_a_recording_that_is_cut_off(folder: Path) -> None:
    data = (folder / "one.rbrec").read_bytes()
    (folder / "cut.rbrec").write_bytes(data[:-20])
    for both in (("one.rbrec", "cut.rbrec"), ("cut.rbrec", "two.rbrec")):
        done = report("--diff", *both, folder=folder)
        said = " ".join(done.stderr.split())
        assert (done.returncode, f"cut.rbrec: {CUT}" in said) == (5, True)


def test_a_recording_that_is_still_written(folder: Path) -> None:
    """It is not cut off."""
    with RecordingWriter(folder / "new.rbrec", Meta(), Statistics()) as writer:
        writer.add(sample("a"))
        writer.flush()
        done = report("new.rbrec", folder=folder)
    said = "rbtrace-py: new.rbrec is still being written\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert "no losses" in done.stdout


def test_diff_of_recordings(folder: Path) -> None:
    done = report("--diff", "one.rbrec", "two.rbrec", folder=folder)
    assert done.returncode == 0
    assert done.stdout.startswith("before → after: 200 samples → 35 samples\n")
    assert "   50.00     51.43    +1.43  Order#total order.rb\n" in done.stdout
    done = report(
        "--diff", "one.rbrec", "two.rbrec", "--format", "flamegraph", folder=folder
    )
    assert done.stderr == "rbtrace-py: wrote two.diff.svg\n"
    assert "+1.43)" in (folder / "two.diff.svg").read_text()


def test_a_diff_of_two_engines_says_so(folder: Path) -> None:
    note = "one recording was made by the engine bpf, the other by memory"
    record(folder / "kernel.rbrec", 5, engine="bpf")
    both = report("--diff", "one.rbrec", "kernel.rbrec", folder=folder)
    assert (both.returncode, both.stderr.count(note)) == (0, 1)
    same = report("--diff", "one.rbrec", "two.rbrec", folder=folder)
    assert note not in same.stderr


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_says_how_many_were_idle(folder: Path, format_: str) -> None:
    """The number is printed on request, and in formats that have a place for it."""
    record_idle(folder / "idle.rbrec")
    words = ("idle.rbrec", "--format", format_, "-o", "out")
    done = report(*words, folder=folder)
    assert "2 idle samples are left out; --idle shows them" in done.stderr
    text = read(folder / "out")
    if format_ == "json":
        assert json.loads(text)["counters"]["idle"] == 2
    elif format_ != "folded":
        assert re.search("2 idle samples are left out[;,] --idle shows them", text)
    assert "Queue#pop" not in text
    done = report(*words, "--idle", folder=folder)
    assert "idle samples" not in done.stderr
    assert "Queue#pop" in read(folder / "out")


def read(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode(
        "latin-1"
    )


@pytest.mark.parametrize("format_", [(), ("--format", "flamegraph")])
def test_a_diff_says_how_many_were_idle(folder: Path, format_: tuple[str, ...]) -> None:
    record_idle(folder / "idle.rbrec")
    words = ("--diff", "idle.rbrec", "idle.rbrec", *format_, "-o", "out")
    assert report(*words, folder=folder).returncode == 0
    said = "4 idle samples are left out; --idle shows them"
    assert said in (folder / "out").read_text()


def test_diff_of_latencies(folder: Path) -> None:
    for name, value in (("a.hlog", 10**6), ("b.hlog", 2 * 10**6)):
        histogram = Histogram.from_values([value] * 5)
        group = Group("shop:pay", None, 5, 0, histogram)
        file = StringIO()
        HlogWriter(file, 0).write(Result("latency", (), ("shop:pay",), 0, 1, (group,)))
        (folder / name).write_text(file.getvalue())
    done = report("--diff", "a.hlog", "b.hlog", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "  p50        1.00 ms     2.00 ms    +100.0 %\n" in done.stdout


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, ""),
        ({"series": ("shop:sell",)}, "probes: shop:pay, then shop:sell"),
        ({"by": "sku"}, "--by: none, then sku"),
        ({"filter": "id > 5"}, "--filter: none, then id > 5"),
    ],
)
def test_a_diff_of_other_queries_says_so(
    tmp_path: Path, changes: dict[str, Any], note: str
) -> None:
    before = write_results(tmp_path)["latency"]
    after = dumps(document(replace(before, **changes)))
    (tmp_path / "after.json").write_text(f"{after}\n")
    done = report("--diff", "latency.json", "after.json", folder=tmp_path)
    said = f"rbtrace-py: the files differ in {note}\n" if note else ""
    assert (done.returncode, done.stderr) == (0, said)


def test_a_diff_of_other_events_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        meta = Meta(mode="event", unit="events", event=f"shop:{name}")
        with RecordingWriter(tmp_path / f"{name}.rbrec", meta, Statistics()) as file:
            file.add(sample("Job#work@/a.rb:4"))
    done = report("--diff", "a.rbrec", "b.rbrec", folder=tmp_path)
    note = "rbtrace-py: the files differ in event: shop:a, then shop:b\n"
    assert (done.returncode, done.stderr) == (0, note)


def write_results(folder: Path) -> dict[str, Result]:
    """Write ``latency.json``, ``count.json`` and ``values.json``."""
    histogram = Histogram.from_values([10**6] * 5)
    durations = Group("shop:pay", None, 5, 5 * 10**6, histogram)
    values = Group("shop:pay", None, 2, 2, SignedHistogram.from_values([-3, 5]))
    found = {
        "latency": Result("latency", (7,), ("shop:pay",), 0, 10**9, (durations,)),
        "count": Result("count", (7,), ("a", "b"), 0, 10**9, (Group("a", None, 5),)),
        "values": Result("values", (7,), ("shop:pay",), 0, 1, (values,), operand="x"),
    }
    for name, result in found.items():
        (folder / f"{name}.json").write_text(f"{dumps(document(result))}\n")
    return found


REPORTS = {
    "latency": latency_report,
    "count": count_report,
    "values": values_report,
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_result_is_shown_as_its_command_does(tmp_path: Path, name: str) -> None:
    result = write_results(tmp_path)[name]
    done = report(f"{name}.json", "-o", "out", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "rbtrace-py: wrote out\n")
    lines = (tmp_path / "out").read_text().splitlines()
    assert lines == list(REPORTS[name](result, PLAIN))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("no.rbrec",), 1, "no.rbrec: No such file or directory"),
        (("text",), 1, "text is neither a recording nor a result"),
        (("new.rbrec",), 1, "new.rbrec is of version 9.0"),
        (("one.rbrec", "two.rbrec"), 2, "Give one file, or two with --diff"),
        (("--diff", "one.rbrec"), 2, "--diff needs two files"),
        (
            ("--diff", "one.rbrec", "text"),
            1,
            "neither a recording nor a result",
        ),
        (
            ("--diff", "text", "text"),
            1,
            "text is neither a recording nor a result",
        ),
        (("count.json", "--pid", "1"), 2, "apply to recordings, not to results"),
        (
            ("--diff", "count.json", "latency.json"),
            2,
            "--diff cannot compare results of count and latency",
        ),
        (
            ("--diff", "values.json", "values.json"),
            2,
            "--diff cannot compare results of values",
        ),
        (("--diff", "one.rbrec", "ns.rbrec"), 2, "different units or modes"),
        (("--diff", "ns.rbrec", "cpu.rbrec"), 2, "different units or modes"),
        (
            ("--diff", "one.rbrec", "two.rbrec", "--format", "pprof"),
            2,
            "--diff does not support the format pprof",
        ),
        (("one.rbrec", "--thread", "("), 2, "--thread '('"),
        (("one.rbrec", "--format", "png"), 2, "'png' is not one of"),
        (("one.rbrec", "-o", "no/such/folder"), 1, "cannot write no/such/folder"),
        ((), 2, "missing argument 'FILE...'"),
    ],
)
def test_mistakes(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    (folder / "text").write_text("words\n")
    write_results(folder)
    record(folder / "ns.rbrec", 2, "ns")
    record(folder / "cpu.rbrec", 2, "ns", "cpu")
    data = bytearray((folder / "one.rbrec").read_bytes())
    data[8] = 9
    (folder / "new.rbrec").write_bytes(data)
    done = report(*words, folder=folder)
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("format_", ["flamegraph", "pprof", "folded"])
def test_a_full_disk(folder: Path, format_: str) -> None:
    done = report("one.rbrec", "--format", format_, "-o", "/dev/full", folder=folder)
    said = "rbtrace-py: cannot write /dev/full: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
