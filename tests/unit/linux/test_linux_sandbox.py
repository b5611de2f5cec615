"""A program that is a trap never gets more rights than the process it is of."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from linux_targets import HERE, compile_c

from rbtrace_py.errors import NotPermitted, RbtraceError
from rbtrace_py.linux import sandbox
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.processes import descendants
from rbtrace_py.linux.sandbox import run_as

UID, GID, GROUPS = 54321, 54322, [54323, 54324]
EPERM = 1
Start = Callable[..., Process]

DENIED = (
    *("setuid", "socket", "unix", "kill", "ptrace", "peek", "create", "append"),
    *("unlink", "fork", "clone", "unshare", "mount", "bpf"),
)


@pytest.fixture(scope="session")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trap")
    for place in (directory, *directory.parents[:3]):
        if os.geteuid() == 0:
            place.chmod(place.stat().st_mode | 0o011)
    return compile_c(HERE / "trap.c", directory / "ruby", "-static")


@pytest.fixture
def start(root: None) -> Iterator[Start]:
    """Start a waiting target by these words, the innermost process of which it is."""
    started: list[subprocess.Popen[bytes]] = []
    processes: list[Process] = []

    def begin(*words: str | Path) -> Process:
        popen = subprocess.Popen(
            [str(word) for word in (*words, "wait")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(popen)
        assert popen.stdout
        assert popen.stdout.readline() == b"ready\n"
        processes.append(Process((descendants(popen.pid) or [popen.pid])[-1]))
        return processes[-1]

    yield begin
    for process in processes:
        process.close()
    for popen in started:
        os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()
        for stream in (popen.stdin, popen.stdout):
            if stream:
                stream.close()


def as_user(uid: int = UID, gid: int = GID, groups: list[int] = GROUPS) -> list[str]:
    listed = ",".join(map(str, groups))
    how = f"--groups={listed}" if groups else "--clear-groups"
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", how]


class Said:
    """What the trap said."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        pairs = [line.partition(" ") for line in lines]
        self.words = {name: rest for name, _, rest in pairs}
        status = [line.split()[1:] for line in lines if line.startswith("status ")]
        self.status = {words[0].rstrip(":"): int(words[1], 16) for words in status}

    def check(self) -> None:
        """That it could do nothing."""
        assert {name: int(self.words[name]) for name in DENIED} == dict.fromkeys(
            DENIED, EPERM
        )
        environment = {line for line in self.lines if line.startswith("env ")}
        assert environment == {"env PATH=/usr/bin:/bin", "env LANG=C.UTF-8"}
        assert not [line for line in self.lines if line.startswith("open ")]


def spring(process: Process) -> Said:
    """Run the program of ``process``; what it said."""
    lines = []
    with run_as(process, ["ruby"]) as running:
        deadline = time.monotonic() + 60
        while not lines or lines[-1] != "ready":
            lines.append(running.read_line(deadline).decode())
        assert os.getsid(running.pid) == running.pid
        own = Process(running.pid)
    assert not own.alive()
    own.close()
    said = Said(lines)
    said.check()
    return said


def no_rights(said: Said) -> None:
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert {name: said.status[name] for name in names} == dict.fromkeys(names, 0)
    assert (said.status["NoNewPrivs"], said.status["Seccomp"]) == (1, 2)


def test_as_the_targets_user(start: Start, trap: Path) -> None:
    said = spring(start(*as_user(), trap))
    assert said.words["uids"] == f"{UID} {UID} {UID}"
    assert said.words["gids"] == f"{GID} {GID} {GID}"
    assert [int(word) for word in said.words["groups"].split()] == GROUPS
    no_rights(said)


def test_never_as_root(start: Start, trap: Path) -> None:
    """A root's program runs as nobody, whoever owns it and whatever its bits."""
    mode = trap.stat().st_mode
    try:
        trap.chmod(0o6755)
        said = spring(start(trap))
    finally:
        trap.chmod(mode)
    assert said.words["uids"] == "65534 65534 65534"
    assert said.words["gids"] == "65534 65534 65534"
    assert said.words["groups"] == ""
    no_rights(said)


def test_a_setuid_program(start: Start, trap: Path, tmp_path: Path) -> None:
    """It runs with the rights of two users: it is not run at all."""
    copy = trap.with_name("ruby-setuid")
    shutil.copy(trap, copy)
    copy.chmod(0o4755)
    process = start(*as_user(), copy)
    if process.uids[0] == process.uids[1]:
        pytest.skip("setuid programs have no effect here")
    with pytest.raises(NotPermitted, match="several users"):
        run_as(process, ["ruby"])


def test_the_same_file_with_the_bit_for_a_user_of_one_mind(
    start: Start, trap: Path
) -> None:
    """no_new_privs: the bit that was set meanwhile gives nothing."""
    copy = trap.with_name("ruby-later")
    shutil.copy(trap, copy)
    process = start(*as_user(), copy)
    copy.chmod(0o6755)
    said = spring(process)
    assert said.words["uids"] == f"{UID} {UID} {UID}"
    no_rights(said)


def test_a_root_that_may_not_be_another(start: Start, trap: Path) -> None:
    target = start("setpriv", "--bounding-set=-all", "--inh-caps=-all", trap)
    with pytest.raises(NotPermitted, match="root without the right"):
        run_as(target, ["ruby"])


def test_in_its_root(start: Start, trap: Path, tmp_path: Path) -> None:
    shutil.copy(trap, tmp_path / "ruby")
    (tmp_path / "rbtrace-root").touch()
    tmp_path.chmod(0o755)
    (tmp_path / "dev").mkdir()
    said = spring(start("chroot", f"--userspec={UID}:{GID}", tmp_path, "/ruby"))
    assert said.words["root"] == "1"
    assert said.words["uids"] == f"{UID} {UID} {UID}"


def test_in_its_namespaces(start: Start, trap: Path) -> None:
    """Pids are its own there; the user is who it is within."""
    kinds = ("--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--fork")
    process = start("unshare", *kinds, "--mount-proc", *as_user(groups=[]), trap)
    said = spring(process)
    assert int(said.words["pid"]) < 100
    no_rights(said)
    process = start(*as_user(groups=[]), "unshare", "--user", "--map-root-user", trap)
    said = spring(process)
    assert said.words["uids"] == "0 0 0"
    no_rights(said)


def test_without_root_only_what_is_as_we_are(
    start: Start, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(*as_user(), trap)
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    monkeypatch.setattr(os, "getresuid", lambda: (UID,) * 3)
    monkeypatch.setattr(os, "getresgid", lambda: (GID,) * 3)
    monkeypatch.setattr(os, "getgroups", lambda: GROUPS[:1])
    assert sandbox.whom_to_be(process) == sandbox.Identity(UID, GID, None)
    monkeypatch.setattr(os, "getgroups", lambda: [*GROUPS, 4])
    with pytest.raises(NotPermitted, match="groups"):
        sandbox.whom_to_be(process)
    monkeypatch.setattr(os, "getresuid", lambda: (UID + 1,) * 3)
    with pytest.raises(NotPermitted, match=f"user {UID}"):
        sandbox.whom_to_be(process)
    other = start("unshare", "--uts", *as_user(), trap)
    with pytest.raises(NotPermitted, match="namespaces"):
        sandbox.whom_to_be(other)


def test_a_script_is_not_run(start: Start, trap: Path, tmp_path: Path) -> None:
    """The program of a script is its interpreter; the script itself never is."""
    script = trap.with_name("ruby-script")
    script.write_text(f"#!{trap} wait\n")
    script.chmod(0o6755)
    process = start(*as_user(), script)
    assert process.exe == str(trap)


def test_a_program_that_says_nothing(start: Start, trap: Path) -> None:
    process = start(*as_user(), trap)
    with run_as(process, ["ruby", "wait"]) as running:
        # Its standard input is empty: it has said ready, and ended.
        assert running.read_line(time.monotonic() + 60) == b"ready"
        with pytest.raises(RbtraceError, match="ended early"):
            running.read_line(time.monotonic() + 60)
    with run_as(process, ["ruby"]) as running:
        while running.read_line(time.monotonic() + 60) != b"ready":
            pass
        with pytest.raises(RbtraceError, match="nothing in time"):
            running.read_line(time.monotonic() + 0.05)
        pid = running.pid
    assert not Path(f"/proc/{pid}").exists()
    running.close()


def test_it_ends_with_us(start: Start, trap: Path) -> None:
    """Killed in mid-run, we leave nothing behind."""
    process = start(*as_user(), trap)
    running = run_as(process, ["ruby"])
    while running.read_line(time.monotonic() + 60) != b"ready":
        pass
    with Process(running.pid) as own:
        running._starter.kill()
        assert own.wait(60)
    running.close()
