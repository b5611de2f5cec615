"""Files that commands write: early refusals, and formats by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import ROOT
from rbtrace_py.cli.common.atomic_file import atomic_file
from rbtrace_py.cli.common.writable import check_writable
from rbtrace_py.errors import RbtraceError
from rbtrace_py.report.file_formats import format_of_file

NOWHERE = "/proc/nowhere/file"
PID = str(os.getpid())
TEXT = ("dump", "memory", "layout", "doctor")
WRITING = [
    ("stacks", "-o"),
    ("stacks", "--calls", "-o"),
    ("record", "-o"),
    ("trace", "x", "-o"),
    ("count", "x", "-o"),
    ("values", "x", "y", "-o"),
    ("latency", "x", "-o"),
    ("latency", "x", "--hlog"),
    ("probes", "-o"),
    ("calls", "-o"),
    ("calls", "--record"),
]


@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_a_file_is_refused_before_the_program_starts(
    words: tuple[str, ...], say: Callable, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    said = say(*words, NOWHERE, "--", "touch", str(started))
    assert (said.out, said.code) == ("", 1)
    assert said.err.startswith(f"rbtrace-py: cannot write {NOWHERE}: ")
    assert not started.exists()


@pytest.mark.parametrize(
    "words",
    [
        *[(name, PID, "-o", NOWHERE) for name in TEXT],
        ("backtraces", PID, "-o", NOWHERE),
        ("heapdump", PID, NOWHERE),
        ("heapdump", PID, "-o", NOWHERE),
        ("shapesdump", PID, NOWHERE),
        ("shapesdump", PID, "-o", NOWHERE),
        ("layout", PID, "--save", NOWHERE),
        ("report", "none.rbrec", "-o", NOWHERE),
    ],
    ids=lambda words: words[0],
)
def test_a_file_is_refused_before_the_target_is_read(
    words: tuple[str, ...], say: Callable
) -> None:
    said = say(*words)
    assert said.err.startswith(f"rbtrace-py: cannot write {NOWHERE}: "), said
    assert (said.out, said.code) == ("", 1)


@pytest.mark.parametrize(
    "words",
    [
        ("layout", PID, "--save"),
        ("dump", PID, "-o"),
        ("heapdump", PID, "-o"),
        ("stacks", PID, "-o"),
        ("calls", PID, "--record"),
    ],
    ids=lambda words: " ".join(words[::2]),
)
def test_a_file_has_a_name(words: tuple[str, ...], say: Callable) -> None:
    said = say(*words, "")
    assert said.code == 2
    assert said.err.endswith(": the name of the file is empty\n  Name a file\n")


@pytest.mark.parametrize("command", ["heapdump", "shapesdump"])
def test_a_dump_has_one_file(command: str, say: Callable, tmp_path: Path) -> None:
    said = say(command, PID, "a.json", "-o", str(tmp_path / "b.json"))
    assert (said.code, said.out) == (2, "")
    assert "too many arguments: 'a.json'" in said.err


@pytest.mark.skipif(os.geteuid() != 0, reason="any folder is root's to make read-only")
@pytest.mark.parametrize("words", [("record",), ("stacks", "--format", "flamegraph")])
def test_the_own_name_is_tried_too(
    words: tuple[str, ...],
    say: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir("/proc")
    started = tmp_path / "started"
    said = say(*words, "--", "touch", str(started))
    assert said.err.startswith("rbtrace-py: cannot write rbtrace-"), said
    assert not started.exists()


def test_trying_changes_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("kept")
    check_writable(str(there))
    check_writable(str(tmp_path / "fresh"))
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    check_writable(str(tmp_path / "link"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "there"]
    assert there.read_text() == "kept"
    with pytest.raises(RbtraceError, match="is a directory; name a file"):
        check_writable(str(tmp_path))


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from rbtrace_py.cli.common.atomic_file import atomic_file
with atomic_file(sys.argv[2]) as write:
    write(b"secret")
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writing(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a writer of a file, which ends when its input does."""
    command = [sys.executable, "-c", WRITER, str(ROOT / "tracer"), str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        yield writer


def test_parts_of_writers_that_were_killed(tmp_path: Path) -> None:
    """The next writer in the folder removes them, but no other file."""
    others = {".a.part": "", ".a.rbtrace-part.": "", "b.rbtrace-part": ""}
    for name, text in others.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".link.rbtrace-part").symlink_to("b.rbtrace-part")
    os.mkfifo(tmp_path / ".fifo.rbtrace-part")
    before = set(os.listdir(tmp_path))
    with writing(tmp_path / "running"):
        with writing(tmp_path / "killed") as killed:
            killed.kill()
        left = set(os.listdir(tmp_path)) - before
        assert {name.split(".")[1] for name in left} == {"running", "killed"}
        with atomic_file(str(tmp_path / "new")) as write:
            write(b"new")
        left = set(os.listdir(tmp_path)) - before - {"new"}
        assert {name.split(".")[1] for name in left} == {"running"}
    assert set(os.listdir(tmp_path)) == {*before, "new", "running"}
    assert (tmp_path / "running").read_text() == "secret"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_a_part_of_another_user(tmp_path: Path) -> None:
    part = tmp_path / ".theirs.rbtrace-part"
    part.touch()
    os.chown(part, 65534, 65534)
    with atomic_file(str(tmp_path / "new")) as write:
        write(b"new")
    assert part.exists()


def test_a_pipe_stays_open(tmp_path: Path) -> None:
    """Its reader would mistake the end of a trial for the end of the data."""
    read, write = os.pipe()
    try:
        check_writable(f"/proc/self/fd/{write}")
        os.write(write, b"x")
        assert os.read(read, 2) == b"x"
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    ("name", "format_"),
    [
        ("a.svg", "flamegraph"),
        ("A.SVG", "flamegraph"),
        ("a.json", "speedscope"),
        ("a.speedscope.json", "speedscope"),
        ("a.pb.gz", "pprof"),
        ("a.pprof", "pprof"),
        ("a.folded", "folded"),
        ("a.txt", "folded"),
        ("a.rbrec", "recording"),
        ("/dev/stdout", None),
        ("svg", None),
        ("a.gz", None),
        (None, None),
    ],
)
def test_the_format_that_a_name_says(name: str | None, format_: str | None) -> None:
    assert format_of_file(name) == format_


@pytest.mark.parametrize("command", ["stacks", "latency", "calls", "dump"])
def test_a_format_of_others(command: str, say: Callable, tmp_path: Path) -> None:
    said = say(command, "1", "-o", str(tmp_path / "a.PNG"))
    assert said.code == 2
    assert "unknown format: png" in " ".join(said.err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.svg", "a.pb.gz", "a.rbrec"])
def test_commands_that_write_text_write_no_picture(
    name: str, say: Callable, tmp_path: Path
) -> None:
    said = say("dump", "1", "-o", str(tmp_path / name))
    assert said.code == 2
    assert "but dump writes text or JSON" in " ".join(said.err.split())
    assert list(tmp_path.iterdir()) == []


def test_json_by_its_name(say: Callable, tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    say("doctor", "-o", str(path))
    assert path.read_text().startswith('{"schema": "rbtrace-py/doctor"')


def test_engines(say: Callable) -> None:
    said = say("stacks", "1", "--engine", "gdb")
    assert said.code == 2
    assert "'gdb' is not one of 'auto', 'bpf'," in said.err


@pytest.mark.parametrize("command", ["stacks", "top", "dump", "probes", "calls"])
def test_a_pid_as_an_option(command: str, say: Callable) -> None:
    for words in (("-p", "2147483647"), ("--pid", "2147483647"), ("2147483647",)):
        said = say(command, *words)
        assert (said.code, "2147483647" in said.err) == (4, True), said
    said = say(command, "-p", "1", "2")
    assert "--pid already names the target; unexpected 2" in said.err
    assert say(command, "-p", "1", "--ps", "x").code == 2


@pytest.mark.parametrize("command", ["stacks", "top", "dump", "record"])
def test_names_of_py_spy_and_rbspy(command: str, say: Callable) -> None:
    words = ["--pid", "2147483647", "--nonblocking", "--force-version", "3.1.2"]
    if command != "dump":
        words += ["--rate", "10", "--duration", "1"]
    if command in ("stacks", "record"):
        words += ["--format", "raw", "--output", "/dev/null"]
    assert say(command, *words).code == 4
    assert say(command, "1", "--nonblocking", "--pause").code != 0


@pytest.mark.parametrize("command", ["stacks", "top", "record"])
def test_modes_do_not_contradict(command: str, say: Callable) -> None:
    assert "--gil and --mode wall" in say(command, PID, "--gil", "--mode=wall").err
    assert "--idle and --mode cpu" in say(command, PID, "--idle", "--mode=cpu").err
    assert "cannot be combined" in say(command, PID, "--idle", "--gil").err
