"""Paths in the root of a process, on kernels with and without openat2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rbtrace_py.linux import paths_in_root
from rbtrace_py.linux.paths_in_root import open_directory_in_root, open_in_root

NO_SYSTEM_CALL = 1 << 20


@pytest.fixture(params=["openat2", "walk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "walk":
        monkeypatch.setattr(paths_in_root, "_OPENAT2", NO_SYSTEM_CALL)
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").touch()
    inside = tmp_path / "root"
    (inside / "directory").mkdir(parents=True)
    (inside / "directory/file").touch()
    (inside / "absolute").symlink_to(tmp_path / "outside")
    (inside / "relative").symlink_to("../outside")
    (inside / "own").symlink_to("/directory")
    fd = os.open(inside, os.O_PATH)
    yield fd
    os.close(fd)


def found(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def test_a_file_and_a_directory(way: str, root: int, tmp_path: Path) -> None:
    expected = str(tmp_path / "root/directory/file")
    assert found(open_in_root(root, "/directory/file")) == expected
    assert found(open_in_root(root, b"directory/file")) == expected
    assert found(open_directory_in_root(root, "/directory")) == expected[:-5]
    with pytest.raises(NotADirectoryError):
        open_directory_in_root(root, "/directory/file")


@pytest.mark.parametrize(
    "path", ["/absolute/file", "/relative/file", "../outside/file", "/gone/file"]
)
def test_no_path_leads_out(path: str, way: str, root: int) -> None:
    with pytest.raises(OSError, match=r"No such file|Not a directory|Too many levels"):
        open_in_root(root, path)


def test_a_link_to_a_directory_of_the_root(root: int, tmp_path: Path) -> None:
    expected = str(tmp_path / "root/directory/file")
    assert found(open_in_root(root, "/own/file")) == expected
