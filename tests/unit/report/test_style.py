"""Abilities of a stream: colors, width, characters."""

from __future__ import annotations

import io
import os
from dataclasses import replace

import pytest

from rbtrace_py.report.style import ASCII, PLAIN, Style, can_move

FILE = replace(PLAIN, is_whole=True)


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding)

    def isatty(self) -> bool:
        return True


def test_colour_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style.for_stream(Terminal("utf-8")) == Style(colour=True)
    assert Style.for_stream(io.TextIOWrapper(io.BytesIO(), "utf-8")) == FILE
    assert Style.for_stream(Terminal("utf-8"), colour=False) == PLAIN
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style.for_stream(Terminal("utf-8")) == PLAIN


def test_no_colour_where_lines_are_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not can_move(Terminal("utf-8"))
    assert Style.for_stream(Terminal("utf-8")) == PLAIN


@pytest.mark.parametrize(
    ("columns", "width", "room"),
    [(200, 80, 200), (80, 80, 80), (40, 40, 40), (3, 20, 20), (0, 80, 80)],
)
def test_width_of_a_terminal(
    columns: int, width: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr("os.get_terminal_size", lambda _: size)
    monkeypatch.setattr(Terminal, "fileno", lambda _: 1)
    style = Style.for_stream(Terminal("utf-8"))
    assert (style.width, style.room) == (width, room)
    plain = Style.for_stream(io.TextIOWrapper(io.BytesIO(), "utf-8"))
    assert (plain.width, plain.room) == (80, 80)


def test_ascii_where_the_encoding_is_not_unicode() -> None:
    for encoding in ("latin-1", "ascii"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding)
        assert Style.for_stream(stream) == replace(ASCII, is_whole=True)
    plain = io.TextIOWrapper(io.BytesIO(), "utf-8")
    assert Style.for_stream(plain, ascii_only=True) == replace(ASCII, is_whole=True)


def test_paint() -> None:
    assert Style(colour=True).bold("a") == "\x1b[1ma\x1b[m"
    assert Style(colour=True).bold("") == ""
    assert PLAIN.bold("a") == "a"
