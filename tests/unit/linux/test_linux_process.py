from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from linux_targets import is_root, running

from rbtrace_py.errors import NoSuchTarget, NotPermitted
from rbtrace_py.linux import process as module
from rbtrace_py.linux.process import Process, parse_stat

THREADED = """
import threading, sys
def body():
    print("ready", threading.get_native_id(), flush=True)
    sys.stdin.read()
threading.Thread(target=body).start()
"""


def test_facts(target: Path) -> None:
    with running(target, "two words") as popen, Process(popen.pid) as process:
        assert process.pid == popen.pid
        assert process.comm == "target"
        assert process.cmdline == [str(target), "two words"]
        assert process.exe == str(target)
        assert process.uid == os.geteuid()
        assert process.threads() == [popen.pid]
        assert process.foreign_namespaces() == []
        assert process.namespace("mnt") == os.stat("/proc/self/ns/mnt").st_ino
        assert process.identity == (popen.pid, process.start_time)
        assert process.alive()
        assert not process.wait(0.01)


def test_end_is_seen(target: Path) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        assert popen.stdin is not None
        popen.stdin.close()
        popen.stdin = None
        assert process.wait(60)
        assert not process.alive()
        popen.wait()
        with pytest.raises(NoSuchTarget, match="has ended"):
            process.read("maps")
        assert process.cmdline == []
        assert process.exe is None


def test_end_is_seen_without_pidfd(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_open_pidfd", lambda pid: None)
    with running(target) as popen, Process(popen.pid) as process:
        assert process.alive()
        popen.kill()
        deadline = time.monotonic() + 60
        while not process.wait(0.01):
            assert time.monotonic() < deadline
        popen.wait()
        assert not process.alive()


def test_a_reused_pid_is_another_process(target: Path) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        process.start_time -= 1
        with pytest.raises(NoSuchTarget, match="has ended"):
            process._check_not_reused()


@pytest.mark.parametrize("pid", [0, -1, 1 << 22, 1 << 31, 1 << 70])
def test_no_such_process(pid: int) -> None:
    with pytest.raises(NoSuchTarget, match=f"there is no process {pid}") as caught:
        Process(pid)
    assert caught.value.hint


def test_a_thread_is_no_process() -> None:
    with running(sys.executable, "-c", THREADED) as popen:
        tid = int(popen.ready_line.split()[1])  # type: ignore[attr-defined]
        with pytest.raises(NoSuchTarget, match=f"thread of process {popen.pid}") as got:
            Process(tid)
        assert str(popen.pid) in got.value.hint
        with Process(popen.pid) as process:
            assert process.threads() == sorted([popen.pid, tid])


def test_a_zombie(target: Path) -> None:
    with running(target) as popen:
        popen.kill()
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(NoSuchTarget, match="has exited") as caught:
            Process(popen.pid)
        assert f"parent {os.getpid()}" in str(caught.value)


def test_a_kernel_thread() -> None:
    stat = Path("/proc/2/stat")
    if not stat.exists() or b"(kthreadd)" not in stat.read_bytes():
        pytest.skip("the kernel's threads are not to be seen here")
    with pytest.raises(NoSuchTarget, match="kernel thread"):
        Process(2)


@pytest.mark.skipif(not is_root(), reason="needs root to become someone else")
def test_not_permitted(target: Path) -> None:
    with running(target) as popen:
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            try:
                Process(popen.pid)
            except NotPermitted as error:
                os._exit(42 if "root" in error.hint else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_stat_of_an_odd_name() -> None:
    fields = " ".join(["S", "1", *["0"] * 4, "64", *["0"] * 10, "3", "0", "77", "0"])
    stat = parse_stat(f"9 (a) S (b\n) {fields}".encode())
    assert (stat.comm, stat.state, stat.parent) == ("a) S (b\\x0a", "S", 1)
    assert (stat.flags, stat.threads, stat.start_time) == (64, 3, 77)
    with pytest.raises(NoSuchTarget):
        parse_stat(b"")


EXEC = """
import os, sys
if len(sys.argv) > 1:
    print("again", flush=True)
else:
    print("ready", flush=True)
    sys.stdin.readline()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
sys.stdin.read()
"""


def test_a_program_is_as_old_as_its_exec() -> None:
    """An exec resets the age of a process."""
    with running(sys.executable, "-c", EXEC) as popen, Process(popen.pid) as process:
        assert popen.stdin is not None
        assert popen.stdout is not None
        first = process.program
        assert first
        assert process.program == first
        popen.stdin.write("go\n")
        popen.stdin.flush()
        told = time.monotonic()
        old = process.age
        assert popen.stdout.readline() == "again\n"
        assert process.program != first
        assert process.age <= time.monotonic() - told
        assert process.seen <= time.monotonic() - told
        assert process.age < old + time.monotonic() - told


def test_a_closed_process_has_ended() -> None:
    process = Process(os.getpid())
    process.close()
    for read in (process.threads, lambda: process.read("stat"), lambda: process.uid):
        with pytest.raises(NoSuchTarget, match="has ended"):
            read()
    assert not process.alive()
    assert process.readlink("exe") is None
