"""Documents, formats, and exit codes equal the golden files byte for byte."""

from __future__ import annotations

import contextlib
import gzip
import inspect
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import golden_recordings
import pytest
from golden_documents import DOCUMENTS
from golden_files import FOLDER, check
from golden_recordings import RECORDINGS

from rbtrace_py import errors
from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.cli.main import main
from rbtrace_py.recording.blocks import FILE_HEADER_SIZE, blocks
from rbtrace_py.report.exchange.hlog import HlogWriter
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from rbtrace_py.rubyvm.saved import write_saved
from sample_makers import START

if os.environ.get("RBTRACE_GOLDEN") == "write":
    golden_recordings.make_missing()


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def exit_code(*words: str) -> int:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        pytest.raises(SystemExit) as ended,
    ):
        main(list(words))
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return code or 0


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name: str) -> None:
    lines = "".join(f"{dumps(each)}\n" for each in DOCUMENTS[name]())
    check(f"documents/{name}.json", lines.encode())


def test_a_saved_layout() -> None:
    text = write_saved("3.3.6", "a1b2", layout_from(table_for("3.3.6"), "3.3.6"))
    check("documents/saved-layout.json", text.encode())


# ----------------------------------------------------------------- recordings


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_are_written_as_ever(name: str, tmp_path: Path) -> None:
    """Only their compression may differ, which depends on zlib."""
    path = tmp_path / "new"
    RECORDINGS[name](path)
    found = []
    for each in (path, FOLDER / "recordings" / f"{name}.rbrec"):
        with each.open("rb") as file:
            head = file.read(FILE_HEADER_SIZE)
            found.append([head, *blocks(file)])
    assert found[0] == found[1]


FOLDED = "--format folded"
REPORTS = {
    "formats": {
        "samples.folded": f"samples {FOLDED}",
        "samples-apart.folded": f"samples {FOLDED} --lines --threads --states",
        "samples-reverse.folded": f"samples {FOLDED} --reverse --idle",
        "samples-busy.folded": f"samples {FOLDED} --no-idle --pid 4211",
        "samples.svg": "samples --format flamegraph --title Tea",
        "samples.speedscope.json": "samples --format speedscope",
        "samples.pb": "samples --format pprof",
        "samples.callgrind": "samples --format callgrind",
        "samples.json": "samples --format json",
        "samples-later.svg": "--diff samples later --format flamegraph",
        "cpu.folded": f"cpu {FOLDED}",
        "cpu.json": "cpu --format json",
        "cpu.pb": "cpu --format pprof",
        "cpu.callgrind": "cpu --format callgrind",
        "cpu.speedscope.json": "cpu --format speedscope",
        "calls.folded": f"with-values {FOLDED}",
        "calls-threads.folded": f"with-values {FOLDED} --threads",
        "calls.svg": "with-values --format flamegraph",
        "calls.speedscope.json": "with-values --format speedscope",
        "calls.pb": "with-values --format pprof",
        "calls.callgrind": "with-values --format callgrind",
        "calls.json": "with-values --format json",
        "calls.perfetto-trace": "with-values --format perfetto",
        "calls.trace.json": "with-values --format chrome",
        "records.perfetto-trace": "records --format perfetto",
        "records.json": "records --format json",
    },
    # Output for users, whose wording may improve.
    "text": {
        "samples-summary.txt": "samples --format summary",
        "samples-summary-by-line.txt": "samples --format summary-by-line",
        "samples-readable.txt": "later --format readable",
        "samples-diff.txt": "--diff samples later",
        "cpu-summary.txt": "cpu --format summary",
        "calls.txt": "with-values --format=calls",
        "calls-seconds.txt": "with-values --format=calls --rbtrace-times",
        "calls-threads.txt": "with-values --format=calls --threads",
        "calls-cpu.txt": "with-values --format=calls --cpu",
        "records-cpu.txt": "records --format=calls --cpu --threads",
        "calls-summary.txt": "with-values --format summary",
        "calls-readable.txt": "with-values --format readable",
    },
}


@pytest.mark.parametrize(
    ("golden", "words"),
    [(f"{d}/{name}", words) for d in REPORTS for name, words in REPORTS[d].items()],
)
def test_reports(
    golden: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER / "recordings")
    output = tmp_path / "output"
    named = [f"{word}.rbrec" if word in RECORDINGS else word for word in words.split()]
    assert exit_code("report", *named, "-o", str(output)) == 0
    data = output.read_bytes()
    check(golden, gzip.decompress(data) if golden.endswith(".pb") else data)


def test_calls_recorded_by_an_older_version_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER / "recordings")
    for format_ in ("calls", "chrome", "folded"):
        words = ("report", "calls.rbrec", "--format", format_, "-o", f"{tmp_path}/new")
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        assert ended.value.code == 1
        assert capsys.readouterr().err == (
            "rbtrace-py: calls.rbrec was made by rbtrace-py 0.2\n"
            "  Read it with rbtrace-py 0.2, or record the calls again\n"
        )
        assert list(tmp_path.iterdir()) == []


def latencies(path: Path, step: int) -> None:
    histogram = Histogram.from_values([step * n for n in range(1, 50)])
    group = Group("shop:pay", None, 49, 0, histogram)
    with path.open("w") as file:
        writer = HlogWriter(file, START)
        ended = START + 10**9
        writer.write(Result("latency", (), ("shop:pay",), START, ended, (group,)))
        by_key = Result("latency", (), ("shop:pay",), ended, ended, (group,), by="sku")
        writer.write(by_key)


def test_histogram_logs(tmp_path: Path) -> None:
    """Their histograms are also compressed. A log that was written before stays
    readable."""
    before, after = FOLDER / "recordings" / "before.hlog", tmp_path / "after.hlog"
    if not before.exists():
        latencies(before, 10**6)
    latencies(tmp_path / "again.hlog", 10**6)
    latencies(after, 2 * 10**6)
    for name, path in (("same", tmp_path / "again.hlog"), ("twice", after)):
        output = tmp_path / name
        words = ("report", "--diff", str(before), str(path), "-o", str(output))
        assert exit_code(*words) == 0
        check(f"text/latencies-{name}.txt", output.read_bytes())


# ----------------------------------------------------------------- exit codes

PID = str(os.getpid())
NO_PROCESS = "2147483647"
MISTAKES = """
0 --version
0 --help
0 report with-values.rbrec
1 report calls.rbrec
1 report calls.rbrec --cpu
1 report calls.rbrec --format folded
1 report --diff calls.rbrec with-values.rbrec
1 report no.rbrec
0 report before.hlog
0 report --diff before.hlog before.hlog
2 report before.hlog --format folded
1 report samples.rbrec -o no/such/folder
1 report samples.rbrec -o samples.rbrec
1 probes PID -o /proc/nowhere/file
2
2 nosuch
2 --nosuch
2 --
2 count
2 count abc x
2 count PID
2 count PID x -d soon
2 count PID x -n 0
2 count --ps ( x
2 count y -- /no/such/program
2 latency PID x --unit fortnight
2 trace PID x --by id
2 values PID x
2 stacks PID --json
2 stacks PID --rate 0
2 completion tcsh
2 doctor PID,1
2 layout PID --layout no/such/file
2 report
2 report samples.rbrec later.rbrec
2 report samples.rbrec --format png
2 report samples.rbrec --format perfetto
2 report samples.rbrec --thread (
2 report samples.rbrec --cpu
2 report samples.rbrec --rbtrace-times
2 report with-values.rbrec --state running
2 report --diff samples.rbrec
2 report --diff samples.rbrec cpu.rbrec
2 report --diff samples.rbrec later.rbrec --format pprof
4 report samples.rbrec --pid 1
4 report with-values.rbrec --thread zz
4 probes NO_PROCESS
4 probes PID no_such_probe
4 count PID no_such_probe
4 probes --ps no-process-is-called-like-this-[0-9]{9}
4 dump NO_PROCESS
4 dump PID
4 top NO_PROCESS
4 stacks PID
4 record PID -o /dev/null
4 layout PID
4 attach NO_PROCESS
4 attach PID
4 detach NO_PROCESS
4 eval NO_PROCESS 1
4 calls NO_PROCESS
4 backtraces NO_PROCESS
4 memory NO_PROCESS
4 fork NO_PROCESS
"""


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_exit_codes(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER / "recordings")
    code, *words = line.split(" ")
    words = [{"PID": PID, "NO_PROCESS": NO_PROCESS}.get(word, word) for word in words]
    assert exit_code(*words) == int(code)


def test_exit_codes_of_errors() -> None:
    found = [
        f"{error.exit_code} {name}\n"
        for name, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.RbtraceError)
    ]
    found.append(f"{errors.TOO_MUCH_LOST} TOO_MUCH_LOST\n")
    check("exit-codes.txt", "".join(sorted(found)).encode())
