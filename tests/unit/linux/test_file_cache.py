"""Files that are kept for other programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbtrace_py.linux.cache import store_file


def test_a_file_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = store_file("kind", "key", "inner/name", b"\0one")
    assert folder == tmp_path / "rbtrace-py" / "kind" / "key"
    file = folder / "inner" / "name"
    first = file.stat()
    assert (file.read_bytes(), first.st_mode & 0o777) == (b"\0one", 0o600)
    store_file("kind", "key", "inner/name", b"\0one")
    assert file.stat().st_ino == first.st_ino
    # A file that another program left half written is created again.
    file.write_bytes(b"\0o")
    store_file("kind", "key", "inner/name", b"\0one")
    assert file.read_bytes() == b"\0one"
    assert [path.name for path in file.parent.iterdir()] == ["name"]


def test_nothing_is_kept_where_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store_file("kind", "key", "name", b"one") is None
