"""What a stream can show."""

from __future__ import annotations

import io

import pytest

from rbtrace_py.report.style import ASCII, PLAIN, Style


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding)

    def isatty(self) -> bool:
        return True


def test_colour_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Style.for_stream(Terminal("utf-8")) == Style(colour=True)
    assert Style.for_stream(io.TextIOWrapper(io.BytesIO(), "utf-8")) == PLAIN
    assert Style.for_stream(Terminal("utf-8"), colour=False) == PLAIN
    monkeypatch.setenv("NO_COLOR", "1")
    assert Style.for_stream(Terminal("utf-8")) == PLAIN


def test_ascii_where_the_encoding_is_not_unicode() -> None:
    assert Style.for_stream(io.TextIOWrapper(io.BytesIO(), "latin-1")) == ASCII
    assert Style.for_stream(io.TextIOWrapper(io.BytesIO(), "ascii")) == ASCII
    plain = io.TextIOWrapper(io.BytesIO(), "utf-8")
    assert Style.for_stream(plain, ascii_only=True) == ASCII


def test_paint() -> None:
    assert Style(colour=True).bold("a") == "\x1b[1ma\x1b[m"
    assert Style(colour=True).bold("") == ""
    assert PLAIN.bold("a") == "a"
