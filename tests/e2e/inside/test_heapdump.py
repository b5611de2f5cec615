"""``heapdump``: every object of a process, in a file that is complete or absent."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from terminal import Terminal

import rubies
from commands import run
from processes import MAIN, ROOT, TIMEOUT, Target
from public_copy import PublicCopy
from rbtrace_py.linux.processes import children
from rubies import HERE
from ruby_builds import EACH

Start = Callable[..., Target]
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}


@pytest.fixture
def target(start: Start) -> Target:
    return start("inside/agent.rb")


def objects(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return the objects. Every line is JSON."""
    return [json.loads(line) for line in lines]


def check(found: list[dict[str, Any]]) -> None:
    """Check that the heap is complete: all referenced objects exist."""
    counts = Counter(one["type"] for one in found)
    assert counts["ROOT"] >= 1
    assert counts["STRING"] > 1000
    assert counts["CLASS"] > 300
    addresses = {one["address"] for one in found if "address" in one}
    references = [to for one in found for to in one.get("references", ())]
    assert len(references) > 10_000
    # Ruby 2.7 has some references to freed objects.
    dangling = [to for to in references if to not in addresses]
    assert len(dangling) * 1000 < len(references)


def values(found: list[dict[str, Any]]) -> list[str]:
    return [one["value"] for one in found if "value" in one]


def cost(target: Target) -> str:
    """Return a pattern for the announced costs."""
    words = f"rbtrace-py: a copy of process {target.pid} writes the dump; it can take"
    return words.replace(" ", r"\s+") + r"\s+up\s+to\s+[\d,]+\s+MiB\s+of[^.]*?exits\n"


def test_a_file(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "heap.json"
    path.write_text("old")
    assert run("eval", target.pid, 'NEEDLE = ["a needle", "in it"].join(" ")')[2] == 0
    out, err, code = run("heapdump", target.pid, path)
    size = path.stat().st_size
    assert (out, code) == ("", 0)
    assert re.match(cost(target), err)
    assert err.endswith(f": the heap of process {target.pid}, {size:,} bytes\n")
    found = objects(path.read_text(errors="replace").splitlines())
    check(found)
    assert values(found).count("a needle in it") == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert target.step("on") == "done on"


def test_compressed(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "heap.json.gz"
    assert run("heapdump", target.pid, path, "--gc")[2] == 0
    with gzip.open(path, "rt", errors="replace") as file:
        check(objects(file))


def test_the_name_it_has_by_itself(target: Target, tmp_path: Path) -> None:
    words = [sys.executable, "-c", MAIN, "heapdump", str(target.pid)]
    done = subprocess.run(
        words, capture_output=True, timeout=TIMEOUT, env=ENV, cwd=tmp_path
    )
    assert done.returncode == 0
    names = [path.name for path in tmp_path.iterdir()]
    assert names == [f"heapdump-{target.pid}.json"]


def test_standard_output_and_a_reader_that_has_seen_enough(target: Target) -> None:
    out, err, code = run("heapdump", target.pid, "-")
    check(objects(out.splitlines()))
    assert re.fullmatch(cost(target), err)
    assert code == 0
    words = [sys.executable, "-c", MAIN, "heapdump", str(target.pid), "-"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.read(1) == b"{"
        process.stdout.close()
        assert re.fullmatch(cost(target), process.stderr.read().decode())
        assert process.wait(TIMEOUT) == 0


@pytest.mark.parametrize("name", EACH)
def test_each_ruby(name: str, tmp_path: Path) -> None:
    path = tmp_path / "heap.json"
    with rubies.running(name, "inside/agent.rb") as target:
        assert run("heapdump", target.pid, path)[2] == 0
    check(objects(path.read_text(errors="replace").splitlines()))


def test_several(start: Start, tmp_path: Path) -> None:
    pids = [start("inside/agent.rb").pid for _ in range(2)]
    words = ",".join(map(str, pids))
    assert run("heapdump", words, tmp_path / "a.json")[2] == 0
    assert run("heapdump", words, "-o", tmp_path / "b.gz")[2] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        name for pid in pids for name in (f"a.json.{pid}", f"b.{pid}.gz")
    )
    _, err, code = run("heapdump", words, "-")
    assert "one process" in err
    assert code == 2


@pytest.mark.parametrize("name", ["heap.json", "heap.json.gz"])
def test_a_full_disk(name: str, target: Target, small_disk: Path) -> None:
    path = small_disk / name
    path.write_text("old")
    out, err, code = run("heapdump", target.pid, path)
    assert f"rbtrace-py: cannot write {path}: No space left" in " ".join(err.split())
    assert (out, code) == ("", 1)
    assert {one.name: one.read_text() for one in small_disk.iterdir()} == {name: "old"}
    assert target.step("on") == "done on"


@pytest.mark.parametrize(
    ("path", "text", "code"),
    [
        ("/dev/full", "cannot write /dev/full: No space left on device", 1),
        ("/none/heap", "cannot write /none/heap: No such file or directory", 1),
        ("/tmp", "/tmp is a directory; name a file", 2),
    ],
)
def test_where_it_cannot_be_written(
    path: str, text: str, code: int, target: Target
) -> None:
    out, err, found = run("heapdump", target.pid, path)
    assert re.fullmatch(f"({cost(target)})?rbtrace-py: {text}\n", err)
    assert (out, found) == ("", code)


def test_standard_output_that_is_full(target: Target) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "heapdump", str(target.pid), "-"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            env=ENV,
        )
    assert "cannot write to standard output: No space left on device" in done.stderr
    assert done.returncode == 1


def test_without_an_agent(tmp_path: Path) -> None:
    target = Target(*rubies.command(HERE))
    try:
        _, err, code = run("heapdump", target.pid, tmp_path / "heap")
    finally:
        target.close()
    assert err.startswith(f"rbtrace-py: no agent in process {target.pid}\n")
    assert code == 4
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def dumping(target: Target, path: Path, *words: str) -> Iterator[Any]:
    """Start a dump that is blocked because its output is not read."""
    os.mkfifo(path)
    arguments = ["heapdump", str(target.pid), str(path), *words]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    )
    with path.open("rb") as file:
        assert file.read(1) == b"{"
        yield process, file
        process.kill()
        process.communicate(timeout=TIMEOUT)


def test_ctrl_c_ends_it(target: Target, tmp_path: Path) -> None:
    with dumping(target, tmp_path / "fifo") as (process, file):
        process.send_signal(signal.SIGINT)
        reader = threading.Thread(target=file.read)
        reader.start()
        _, err = process.communicate(timeout=TIMEOUT)
        reader.join(TIMEOUT)
    assert re.fullmatch(f"{cost(target)}rbtrace-py: interrupted\n", err)
    assert process.returncode == 130
    # The agent keeps serving, and its child has ended by then.
    assert run("eval", target.pid, "1")[2] == 0


def test_the_process_serves_on_meanwhile(target: Target, tmp_path: Path) -> None:
    with dumping(target, tmp_path / "fifo"):
        assert target.step("on") == "done on"
        assert run("eval", target.pid, "6 * 7")[0] == "42\n"


def test_a_process_that_ends_meanwhile(target: Target, tmp_path: Path) -> None:
    with dumping(target, tmp_path / "fifo") as (process, file):
        os.kill(target.pid, signal.SIGKILL)
        reader = threading.Thread(target=file.read)
        reader.start()
        _, err = process.communicate(timeout=TIMEOUT)
        reader.join(TIMEOUT)
    ended = f"rbtrace-py: process {target.pid} has ended\n"
    assert re.fullmatch(f"{cost(target)}{ended}", err)
    assert process.returncode == 4


def test_its_copy_ends_with_it(target: Target, tmp_path: Path) -> None:
    """The copy ends, although its output is not read."""
    with dumping(target, tmp_path / "fifo") as (process, _):
        (copy,) = children(target.pid)
        alive = os.pidfd_open(copy)
        os.kill(target.pid, signal.SIGKILL)
        assert select.select([alive], [], [], TIMEOUT)[0], "the copy lives on"
        os.close(alive)
        process.kill()


def test_descriptors_of_the_copy(target: Target, tmp_path: Path) -> None:
    code = (
        'require "socket"; SERVER = TCPServer.new("127.0.0.1", 0);'
        ' OTHER = TCPSocket.new("127.0.0.1", SERVER.addr[1]); UDP = UDPSocket.new; 1'
    )
    assert run("eval", target.pid, code)[2] == 0
    with dumping(target, tmp_path / "fifo"):
        (copy,) = children(target.pid)
        folder = Path(f"/proc/{copy}/fd")
        links = [os.readlink(file) for file in folder.iterdir()]
        assert [link for link in links if link.startswith("socket:")] == []
        assert any(link.startswith("pipe:") for link in links)
        score = Path(f"/proc/{copy}/oom_score_adj").read_text()
        assert score == "1000\n"


def test_another_users_process_that_is_not_dumpable(
    root: None, public_copy: PublicCopy, tmp_path: Path
) -> None:
    """Its files in /proc belong to root, including oom_score_adj."""
    code = (
        "include Tracepoint::Agent; $VERBOSE = nil;"
        " syscall(Copy::PRCTL.fetch(Copy::MACHINE), 4, 0, 0, 0, 0);"  # PR_SET_DUMPABLE
        " File.stat('/proc/self/oom_score_adj').writable?"
    )
    path = tmp_path / "heap"
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ruby"]
    target = Target(*words, str(public_copy.targets / "inside/agent.rb"))
    try:
        assert run("eval", target.pid, code)[:2] == ("false\n", "")
        assert run("heapdump", target.pid, path)[2] == 0
    finally:
        target.close()
    check(objects(path.read_text(errors="replace").splitlines()))


@pytest.fixture
def cgroup(root: None) -> Iterator[Callable[[int, int], Path]]:
    """A cgroup of version 1 or 2 around a process, with a limit on additional bytes."""
    made: list[tuple[Path, int]] = []
    first = Path("/sys/fs/cgroup/memory")

    def put(pid: int, room: int) -> Path:
        is_first = (first / "memory.limit_in_bytes").exists()
        base = first if is_first else Path("/sys/fs/cgroup")
        folder = base / f"rbtrace-test-{os.getpid()}"
        folder.mkdir()
        made.append((folder, pid))
        (folder / "cgroup.procs").write_text(str(pid))
        limit = "memory.limit_in_bytes" if is_first else "memory.max"
        used = "memory.usage_in_bytes" if is_first else "memory.current"
        if not (folder / limit).exists():
            pytest.skip("cgroups have no memory controller here")
        # Its earlier memory stays charged to its old cgroup.
        now = int((folder / used).read_text())
        (folder / limit).write_text(str(now + room))
        return folder

    yield put
    for folder, pid in made:
        (folder.parent / "cgroup.procs").write_text(str(pid))
        folder.rmdir()


def test_the_process_does_not_grow(target: Target, tmp_path: Path) -> None:
    """The dump streams through it and leaves no garbage behind."""
    code = "KEPT = Array.new(400) { 'x' * 100_000 }; GC.start; 1"
    assert run("eval", target.pid, code)[2] == 0
    grown = [-anonymous(target)]
    assert run("heapdump", target.pid, tmp_path / "heap")[2] == 0
    grown.append(anonymous(target))
    assert (tmp_path / "heap").stat().st_size > 40_000_000
    assert sum(grown) < 16 << 20


def anonymous(target: Target) -> int:
    status = Path(f"/proc/{target.pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+)", status)[0]) << 10


def test_a_copy_that_certainly_does_not_fit(
    target: Target, cgroup: Callable[[int, int], Path], tmp_path: Path
) -> None:
    cgroup(target.pid, 4 << 20)  # an answer takes 1 MiB if YJIT compiles all of it
    for more in ((), ("--yes",)):
        _, err, code = run("heapdump", target.pid, tmp_path / "heap", *more)
        assert "does not fit: it takes at least" in " ".join(err.split())
        assert code == 1
    assert list(tmp_path.iterdir()) == []
    assert children(target.pid) == []
    assert target.step("on") == "done on"


def test_a_copy_that_may_not_fit(
    target: Target, cgroup: Callable[[int, int], Path], tmp_path: Path
) -> None:
    code = "KEPT = Array.new(400) { 'x' * 100_000 }; 1"
    assert run("eval", target.pid, code)[2] == 0
    cgroup(target.pid, 24 << 20)
    path = tmp_path / "heap"
    _, err, found = run("heapdump", target.pid, path)
    assert "may not fit: " in err
    assert "the kernel kills the copy first" in " ".join(err.split())
    assert found == 1
    assert children(target.pid) == []
    assert run("heapdump", target.pid, path, "--yes")[2] == 0
    check(objects(path.read_text(errors="replace").splitlines()))
    _, err, found = run("heapdump", target.pid, path, "--gc")
    assert "without --gc it takes less" in " ".join(err.split())
    assert found == 1
    _, err, found = run("heapdump", target.pid, path, "--yes", "--gc")
    assert "may not fit" not in err
    assert found in (0, 1), err  # the kernel may have ended the copy
    assert target.step("on") == "done on"


def test_a_killed_copy_whose_status_the_program_collects(
    target: Target, tmp_path: Path
) -> None:
    assert run("eval", target.pid, "trap('CLD', 'IGNORE')")[2] == 0
    with dumping(target, tmp_path / "fifo") as (process, file):
        (copy,) = children(target.pid)
        end = os.pidfd_open(copy)
        os.kill(copy, signal.SIGKILL)
        assert select.select([end], [], [], TIMEOUT)[0], "the copy lives on"
        os.close(end)
        reader = threading.Thread(target=file.read)
        reader.start()
        out, err = process.communicate(timeout=TIMEOUT)
        reader.join(TIMEOUT)
    assert "the dump failed: its process was ended before" in " ".join(err.split())
    assert (out, process.returncode) == ("", 1)


def test_a_time_limit(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "heap"
    _, err, code = run("heapdump", target.pid, path, "--timeout", "1ms")
    assert "the time limit of 0.001 s passed" in err
    assert "Set another limit with --timeout" in err
    assert code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_shows_progress_before_data_arrives(
    target: Target, tmp_path: Path
) -> None:
    """The progress is printed even if the process collects garbage or is stopped."""
    os.kill(target.pid, signal.SIGSTOP)
    terminal = Terminal("heapdump", target.pid, tmp_path / "heap")
    try:
        terminal.read_until(f"heap of pid {target.pid}: 0 MiB")
        terminal.read_until(f"heap of pid {target.pid}: 0 MiB")
    finally:
        os.kill(target.pid, signal.SIGCONT)
        _, code = terminal.finish()
        terminal.close()
    assert code == 0


def test_a_terminal_is_no_file(target: Target) -> None:
    terminal = Terminal("heapdump", target.pid, "-")
    try:
        said, code = terminal.finish()
    finally:
        terminal.close()
    assert said == (
        "rbtrace-py: will not write the heap to a terminal\r\n  Name a file\r\n"
    )
    assert code == 2
