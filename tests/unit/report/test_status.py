"""The status line, which shows the progress."""

from __future__ import annotations

import pytest

from rbtrace_py.report.style import ASCII, PLAIN, Style
from rbtrace_py.report.terminal.status import elapsed, status_line
from rbtrace_py.report.text import width

WHAT = "waiting for shop:checkout in pid 123"


def test_line() -> None:
    assert status_line(WHAT, 12.7, "stops", PLAIN) == (
        "waiting for shop:checkout in pid 123 · 12 s, Ctrl-C stops"
    )
    assert status_line(WHAT, 0, "stops", ASCII) == (
        "waiting for shop:checkout in pid 123 - 0 s, Ctrl-C stops"
    )


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (60, "waiting for shop:checkout in pid 123 · 12 s, Ctrl-C stops"),
        (59, "waiting for shop:checkout in pid 1… · 12 s, Ctrl-C stops"),
        (42, "waiting for shop:… · 12 s, Ctrl-C stops"),
        (32, "waiting for shop:chec… · 12 s"),
        (22, "waiting for… · 12 s"),
    ],
)
def test_the_status_line_is_shortened_in_order(columns: int, line: str) -> None:
    style = Style(width=columns)
    assert status_line(WHAT, 12, "stops", style) == line


@pytest.mark.parametrize("columns", range(20, 81))
@pytest.mark.parametrize("what", ["a", WHAT * 3, "待つ" * 40, "\x1b[2J\t\n" * 20])
def test_it_stays_within_the_width(columns: int, what: str) -> None:
    line = status_line(what, 3 * 3600, "shows the result", Style(width=columns))
    assert width(line + "^C") < columns
    assert line.isprintable()
    assert "3 h 0 min" in line


def test_elapsed() -> None:
    assert [elapsed(seconds) for seconds in (0.9, 59.9, 60, 3599, 7380)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "59 min 59 s",
        "2 h 3 min",
    ]
