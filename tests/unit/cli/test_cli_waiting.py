"""The line that reports that a process has not answered yet."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from rbtrace_py.cli.common.waiting import Waiting

CLEAR = "\r\x1b[2K"


class Terminal(io.StringIO):
    """Standard error; ``has_said``: something was written."""

    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal
        self.has_said = threading.Event()

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        count = super().write(text)
        self.has_said.set()
        return count


def put(file: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """This is not a fixture, because pytest replaces the streams before the test
    itself."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", file)
    return file


@pytest.mark.parametrize("ends", [False, True])
def test_output_takes_its_place(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = put(Terminal(), monkeypatch)
    with Waiting("waiting", quiet=0.0) as waiting:
        assert stderr.has_said.wait(10)
        waiting.before(stderr.write, ends=ends)("answer\n")
        waiting.before(stderr.write, ends=ends)("more\n")
    text = stderr.getvalue()
    assert f"Ctrl-C stops{CLEAR}answer\n" in text
    assert text.endswith("answer\nmore\n") or not ends


def test_a_line_that_was_never_shown_is_not_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script may have printed something there before."""
    stderr = put(Terminal(), monkeypatch)
    with Waiting("waiting", quiet=60.0):
        pass
    assert stderr.getvalue() == ""


def test_nothing_where_it_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = put(Terminal(is_terminal=False), monkeypatch)
    threads = threading.active_count()
    with Waiting("waiting", quiet=0.0):
        assert threading.active_count() == threads
    assert stderr.getvalue() == ""
