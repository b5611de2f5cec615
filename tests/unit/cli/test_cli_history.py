"""The history of typed lines: it is readable only by its user."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from rbtrace_py.cli.common.console_history import MAX_LINES, History

NOBODY = 65_534


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the history file, which does not exist yet."""
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "rbtrace-py" / "typed"


def test_lines_are_kept(place: Path) -> None:
    history = History("typed")
    assert history.lines() == []
    for line in ("one", "zwei ü", "zwei ü", "", " secret", "a\nb", "x" * 20_000, "one"):
        history.add(line)
    assert History("typed").lines() == ["one", "zwei ü", "one"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


def test_code_of_several_lines(place: Path) -> None:
    """Indentation is kept. Code that begins with a space is not stored."""
    history = History("typed")
    for first, *others in (["def one", "  1", "end"], [" secret = [", "  1", "]"]):
        history.add(first)
        for line in others:
            history.add(line, goes_on=True)
    history.add("two")
    assert History("typed").lines() == ["def one", "  1", "end", "two"]


def test_it_is_bounded(place: Path) -> None:
    place.parent.mkdir(parents=True)
    place.write_text("".join(f"{number}\n" for number in range(2 * MAX_LINES)))
    assert History("typed").lines() == [str(n) for n in range(MAX_LINES, 2 * MAX_LINES)]
    History("typed").add("more")
    assert len(History("typed").lines()) == MAX_LINES
    assert place.read_text().splitlines()[-1] == "more"
    assert len(place.read_text().splitlines()) == MAX_LINES
    assert [path.name for path in place.parent.iterdir()] == ["typed"]
    place.write_text("x" * (1 << 21))
    assert [len(line) for line in History("typed").lines()] == [1 << 20]


def test_others_may_not_read_it(place: Path) -> None:
    place.parent.mkdir(parents=True)
    place.touch(0o644)
    History("typed").add("one")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "no place"])
def test_a_history_that_is_not_a_file_is_unchanged(
    place: Path, tmp_path: Path, kind: str
) -> None:
    place.parent.mkdir(parents=True)
    if kind == "link":
        (tmp_path / "other").write_text("theirs\n")
        place.symlink_to(tmp_path / "other")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    else:
        place.parent.rmdir()
        place.parent.write_text("")
    history = History("typed")
    assert history.lines() == []
    history.add("one")
    if kind == "link":
        assert (tmp_path / "other").read_text() == "theirs\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become someone else")
def test_with_sudo_it_is_the_callers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = os.geteuid(), os.getegid()
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    monkeypatch.setenv("SUDO_GID", str(NOBODY))
    History("typed").add("into root's place")
    assert not place.exists()
    with tempfile.TemporaryDirectory() as state:
        os.chown(state, NOBODY, NOBODY)
        monkeypatch.setenv("XDG_STATE_HOME", state)
        History("typed").add("one")
        assert History("typed").lines() == ["one"]
        theirs = Path(state) / "rbtrace-py"
        for path in (theirs, theirs / "typed"):
            assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)
    assert (os.geteuid(), os.getegid()) == rights
