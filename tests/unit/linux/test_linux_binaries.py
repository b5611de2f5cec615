from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from linux_targets import HERE, compile_c, is_root, running

from rbtrace_py.errors import BadElf, NoSuchTarget, RbtraceError
from rbtrace_py.linux import binaries
from rbtrace_py.linux.binaries import (
    MappedFile,
    mapped_files,
    open_binary,
    open_mapped,
)
from rbtrace_py.linux.probes import find_probes
from rbtrace_py.linux.process import Process

NAMES = ["idle", "paid", "sold"]

needs_root = pytest.mark.skipif(not is_root(), reason="needs root for namespaces")


@pytest.fixture
def no_map_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take ``map_files`` away, as for those who lack the capability for it."""
    ways = binaries._ways

    def fewer(process: Process, file: MappedFile) -> Iterator[tuple[bytes, bool]]:
        return (way for way in ways(process, file) if not way[1])

    monkeypatch.setattr(binaries, "_ways", fewer)


@pytest.fixture(params=["map_files", "paths"])
def way(request: pytest.FixtureRequest) -> str:
    """Both ways to the files, one after the other."""
    if request.param == "paths":
        request.getfixturevalue("no_map_files")
    return str(request.param)


def names(pid: int) -> list[str]:
    with Process(pid) as process:
        return [p.name for p in find_probes(process) if p.provider == "shop"]


def test_files_of_a_process(target: Path, way: str) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        files = [f for f in mapped_files(process) if f.binary.path == str(target)]
        assert len(files) == 1
        assert files[0].binary.key == (target.stat().st_dev, target.stat().st_ino)
        assert len(files[0].mappings) > len(files[0].executable) == 1
        with open_mapped(process, files[0]) as opened:
            assert os.path.samefile(opened.fd_path, target)
            assert not os.get_inheritable(opened.fd)
            fd = opened.fd
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        opened.close()
    assert names_of_dead(popen.pid)


def names_of_dead(pid: int) -> bool:
    with pytest.raises(NoSuchTarget):
        names(pid)
    return True


def test_opened_by_a_probe(target: Path) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        probe = next(p for p in find_probes(process) if p.provider == "shop")
        with open_binary(process, probe.binary) as opened:
            assert opened.binary is probe.binary
            assert os.path.samefile(opened.fd_path, target)
        popen.kill()
        popen.wait()
        with pytest.raises(NoSuchTarget):
            open_binary(process, probe.binary)


@pytest.mark.parametrize(
    "name", ["a b", " c ", "new\nline", "x (deleted)", "\x1b[31m", "\udcff", "\\012"]
)
def test_odd_paths(name: str, target: Path, tmp_path: Path, way: str) -> None:
    path = tmp_path / name
    shutil.copy(target, path)
    with running(path) as popen:
        assert names(popen.pid) == NAMES


def test_deleted(target: Path, tmp_path: Path, way: str) -> None:
    path = shutil.copy(target, tmp_path / "gone")
    with running(path) as popen:
        os.unlink(path)
        assert names(popen.pid) == NAMES
        with Process(popen.pid) as process:
            shown = [file.binary.path for file in mapped_files(process)]
    assert f"{path} (deleted)" in shown


def test_a_fifo_in_its_place(target: Path, tmp_path: Path, way: str) -> None:
    path = shutil.copy(target, tmp_path / "gone")
    with running(path) as popen:
        os.unlink(path)
        os.mkfifo(path)
        signal.alarm(20)
        try:
            assert names(popen.pid) == NAMES
        finally:
            signal.alarm(0)


@pytest.mark.usefixtures("no_map_files")
@pytest.mark.parametrize("kind", ["fifo", "other file", "nothing", "directory"])
def test_a_file_in_the_place_of_a_deleted_one_is_not_used(
    kind: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gone"
    shutil.copy(target, path)
    with running(path) as popen, Process(popen.pid) as process:
        (file,) = (f for f in mapped_files(process) if f.binary.path == str(path))
        os.unlink(path)
        place = {
            "fifo": lambda: os.mkfifo(path),
            "other file": lambda: shutil.copy(target, path),
            "nothing": lambda: None,
            "directory": path.mkdir,
        }
        place[kind]()
        ways = [(os.fsencode(path), False)]
        monkeypatch.setattr(binaries, "_ways", lambda *_: ways)
        with pytest.raises(BadElf, match="cannot find"):
            open_mapped(process, file)


def test_a_device_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_ways", lambda *_: [(b"/dev/zero", True)])
    with Process(os.getpid()) as process, pytest.raises(BadElf):
        open_mapped(process, mapped_files(process)[0])


@needs_root
def test_in_a_chroot(target: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "root").mkdir()
    shutil.copy(target, tmp_path / "root" / "program")
    with running(
        "/program", preexec_fn=lambda: os.chroot(tmp_path / "root"), cwd="/"
    ) as popen:
        assert names(popen.pid) == NAMES


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_in_another_mount_namespace(target: Path, tmp_path: Path, way: str) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    script = 'mount -t tmpfs none "$2" && cp "$1" "$2/p" && exec "$2/p"'
    with (
        running(*("unshare", "-m", "sh", "-c", script, "sh", target, hidden)) as popen,
        Process(popen.pid) as process,
    ):
        assert list(hidden.iterdir()) == []
        assert process.foreign_namespaces() == ["mnt"]
        assert names(popen.pid) == NAMES


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_in_another_pid_namespace(target: Path) -> None:
    with running("unshare", "-p", "-f", "--kill-child", target) as popen:
        child = Path(f"/proc/{popen.pid}/task/{popen.pid}/children").read_text()
        with Process(int(child)) as process:
            assert process.foreign_namespaces() == ["pid"]
            assert names(process.pid) == NAMES


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_on_an_overlay(target: Path, tmp_path: Path) -> None:
    script = (
        'mount -t tmpfs none "$2" && cd "$2" && mkdir low up work all && cp "$1" low/p'
        " && mount -t overlay none -o lowerdir=low,upperdir=up,workdir=work all"
        ' && exec "$2/all/p" || exec echo ready no overlay'
    )
    with running(
        *("unshare", "-m", "sh", "-c", script, "sh", target, tmp_path)
    ) as popen:
        if "no overlay" in popen.ready_line:  # type: ignore[attr-defined]
            pytest.skip("this kernel has no overlayfs")
        assert names(popen.pid) == NAMES


LOADER = """
import ctypes, os, sys
fd = os.memfd_create("image")
os.write(fd, open(sys.argv[1], "rb").read())
ctypes.CDLL(f"/proc/{os.getpid()}/fd/{fd}")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    flags = ("-shared", "-fPIC")
    return compile_c(HERE / "target.c", tmp_path / "libtarget.so", *flags)


def test_in_a_memfd(library: Path, way: str) -> None:
    with running(sys.executable, "-c", LOADER, library) as popen:
        assert names(popen.pid) == NAMES


def test_a_program_in_a_memfd(target: Path, way: str) -> None:
    fd = os.memfd_create("program", 0)
    os.write(fd, target.read_bytes())
    try:
        with running(f"/proc/self/fd/{fd}", pass_fds=(fd,)) as popen:
            assert names(popen.pid) == NAMES
    finally:
        os.close(fd)


@needs_root
def test_a_file_that_may_not_be_opened(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    with running(target) as popen, Process(popen.pid) as process:
        files = mapped_files(process)
        monkeypatch.setattr(binaries, "_open_if", refuse)
        with pytest.raises(RbtraceError, match="not allowed to open"):
            open_mapped(process, files[0])
        popen.kill()
        popen.wait()
        with pytest.raises(NoSuchTarget):
            open_mapped(process, files[0])


def test_no_descriptor_is_left_open(target: Path) -> None:
    open_now: Callable[[], int] = lambda: len(os.listdir("/proc/self/fd"))  # noqa: E731
    with running(target) as popen:
        names(popen.pid)
        before = open_now()
        for _ in range(5):
            names(popen.pid)
        assert open_now() == before
