"""Endings of a command: by a signal, a closed pipe, or a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal

from commands import by_key, run
from processes import MAIN, ROOT, TIMEOUT

START = "from rbtrace_py.cli.start import main; main()"

TRACING = "rbtrace-py: tracing\n"


def words(*arguments: object) -> list[str]:
    return [sys.executable, "-c", MAIN, *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "tracer"), **more}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_the_result(start, trace, number):
    target = start("probes/late.rb")
    tracer = trace("count", target.pid, "late:first", "--json")
    target.step("fire first 3")
    out, err, code = tracer.finish(number)
    assert (by_key(json.loads(out)), code) == ({None: 3}, 0), err
    assert target.step("enabled") == "done [false]"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_trace_with_all_events(start, trace, tmp_path, number):
    target = start("probes/late.rb")
    path = tmp_path / "events.json"
    tracer = trace("trace", target.pid, "late:first", "--json", "-o", path)
    target.step("fire first 3")
    out, err, code = tracer.finish(number)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert (out, code) == ("", 0), err
    assert [line["schema"] for line in lines] == [
        *["rbtrace-py/trace"] * 3,
        "rbtrace-py/trace-end",
    ]
    assert target.step("enabled") == "done [false]"


def test_a_terminal_that_hangs_up(start, root, tmp_path):
    """Its shell sends SIGHUP. Nothing can be written to it any more."""
    target = start("probes/late.rb")
    path = tmp_path / "out.json"
    seen = Terminal("count", target.pid, "late:first", "--json", "-o", path)
    try:
        seen.read_until("measuring")
        target.step("fire first 3")
        assert seen.hang_up() in (0, 1)
    finally:
        seen.close()
    assert by_key(json.loads(path.read_text())) == {None: 3}
    assert target.step("enabled") == "done [false]"


def test_nohup_is_respected(start, trace):
    target = start("probes/late.rb")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        tracer = trace("count", target.pid, "late:first", "--json")
    finally:
        signal.signal(signal.SIGHUP, before)
    tracer.process.send_signal(signal.SIGHUP)
    target.step("fire first 3")
    out, err, code = tracer.finish()
    assert (by_key(json.loads(out)), code) == ({None: 3}, 0), err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_waits(start, root, number):
    target = start("probes/late.rb")
    seen = Terminal("count", target.pid, "later", "--wait")
    try:
        seen.read_until("waiting for later")
        seen.process.send_signal(number)
        said, code = seen.finish()
    finally:
        seen.close()
    assert code == 130
    assert "Traceback" not in said


@pytest.mark.parametrize("module", ["click", "textwrap", "rbtrace_py/cli/main"])
def test_ctrl_c_during_the_imports(tmp_path, module):
    """Ctrl-C interrupts a module during its import."""
    sitting = tmp_path / f"{module}.py"
    sitting.parent.mkdir(parents=True, exist_ok=True)
    if module.startswith("rbtrace_py"):
        package = ROOT / "tracer" / "rbtrace_py"
        for name in ("__init__.py", "cli/__init__.py", "cli/start.py"):
            (tmp_path / "rbtrace_py" / name).write_text((package / name).read_text())
    sitting.write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    path = f"{tmp_path}:{ROOT / 'tracer'}"
    done = subprocess.run(
        [sys.executable, "-c", START, "doctor"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment(PYTHONPATH=path),
    )
    assert (done.stdout, done.stderr) == ("", "rbtrace-py: interrupted\n")
    assert done.returncode == 130


def test_the_installed_command_begins_where_imports_may_be_interrupted():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'rbtrace-py = "rbtrace_py.cli.start:main"' in project


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["count", "--help"],
        ["completion", "bash"],
        ["probes", "PID"],
        ["probes", "PID", "--json"],
        ["doctor"],
    ],
)
def test_nobody_reads_the_output(start, arguments):
    target = start("probes/late.rb")
    arguments = [str(target.pid) if a == "PID" else a for a in arguments]
    assert ended_unread(words(*arguments)) == ("", 0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["count", "PID", "late:first", "-d", "0.2"],
        ["count", "PID", "late:first", "-d", "5", "-i", "0.1"],
        ["latency", "PID", "late:first..late:first2", "-d", "0.1", "--json"],
        ["trace", "PID", "late:first"],
        ["trace", "PID", "late:first", "--json"],
    ],
)
def test_nobody_reads_the_result(start, root, arguments):
    target = start("probes/late.rb")
    target.step("define first2")
    arguments = [str(target.pid) if a == "PID" else a for a in arguments]
    read, write = os.pipe()
    reader, unread = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        words(*arguments),
        stdout=unread,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=(write,),
        env=environment(RBTRACE_READY_FD=str(write)),
    )
    os.close(write)
    os.close(unread)
    with os.fdopen(read) as ready:
        assert ready.readline() == "attached\n"
    target.step("fire first 5")
    _, err = process.communicate(timeout=TIMEOUT)
    assert (err, process.returncode) == ("", 0)
    assert "true" not in target.step("enabled")


def ended_unread(command: list[str]) -> tuple[str, int]:
    reader, unread = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command,
        stdout=unread,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        env=environment(),
    )
    os.close(unread)
    return done.stderr, done.returncode


def test_nobody_reads_what_went_wrong():
    """``2>&1 | head -1``."""
    reader, unread = os.pipe()
    os.close(reader)
    done = subprocess.run(
        words("count", "1", "nothing", "--by"),
        stdout=unread,
        stderr=unread,
        timeout=TIMEOUT,
        env=environment(),
    )
    os.close(unread)
    assert done.returncode in (1, 2)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["--help"], "rbtrace-py: standard output is closed\n", 1),
        (["top", "PID"], TRACING + "rbtrace-py: standard output is closed\n", 1),
        (["probes", "PID"], "rbtrace-py: standard output is closed\n", 1),
        (["probes", "PID", "-o", "FILE"], "", 0),
    ],
)
def test_a_closed_output(start, root, tmp_path, arguments, said, code):
    """``>&-``: lost output must be reported."""
    target = start("probes/late.rb")
    names = {"PID": str(target.pid), "FILE": str(tmp_path / "probes")}
    arguments = [names.get(word, word) for word in arguments]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words(*arguments)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        env=environment(),
    )
    assert (done.stderr, done.returncode) == (said, code)


FULL = "No space left on device"


def told(err: str) -> str:
    """Return the output as one line: long paths are wrapped."""
    return " ".join(err.split())


@pytest.fixture
def full_disk(root, tmp_path):
    """A file system that is already full."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted")
    (place / "filler").write_bytes(b"x" * 4096)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk(start, full_disk):
    target = start("probes/late.rb")
    path = full_disk / "out"
    out, err, code = run("probes", target.pid, "-o", path)
    assert (out, told(err), code) == ("", f"rbtrace-py: cannot write {path}: {FULL}", 1)
    for more in (["--json"], ["-i", "0.1"]):
        arguments = ["count", target.pid, "late:first", "-d", "0.2", *more]
        out, err, code = run(*arguments, "-o", path)
        assert (out, code) == ("", 1)
        assert told(err) == f"rbtrace-py: cannot write {path}: {FULL}"
    arguments = ["latency", target.pid, "late:first..late:first2", "-d", "0.1"]
    target.step("define first2")
    out, err, code = run(*arguments, "--hlog", path)
    assert (out, code) == ("", 1)
    assert told(err) == f"rbtrace-py: cannot write {path}: {FULL}"
    assert "true" not in target.step("enabled")


def test_a_full_disk_ends_a_trace(start, trace, full_disk):
    target = start("probes/late.rb")
    path = full_disk / "out"
    tracer = trace("trace", target.pid, "late:first", "-o", path)
    target.step("fire first 100")
    out, err, code = tracer.result()
    assert (out, code) == ("", 1)
    assert told(err) == f"rbtrace-py: cannot write {path}: {FULL}"
    assert target.step("enabled") == "done [false]"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["probes", "PID"], ["doctor", "--json"]])
def test_a_full_standard_output(start, arguments):
    target = start("probes/late.rb")
    arguments = [str(target.pid) if a == "PID" else a for a in arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words(*arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            env=environment(),
        )
    assert done.returncode == 1
    assert done.stderr == f"rbtrace-py: cannot write to standard output: {FULL}\n"
