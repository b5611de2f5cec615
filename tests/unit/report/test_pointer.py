"""The caret of an error, below its position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.report.style import ASCII, PLAIN, Style
from rbtrace_py.report.terminal.pointer import pointed
from rbtrace_py.report.text import escape, width


def test_a_pointer_that_fits() -> None:
    assert pointed("idd > 1", 0, PLAIN) == ("  idd > 1", "  ^")
    assert pointed("id > 1 )", 7, PLAIN) == ("  id > 1 )", "         ^")
    assert pointed("id >", 4, PLAIN) == ("  id >", "      ^")


def test_wide_and_hidden_characters() -> None:
    assert pointed("sku == '日本' x", 12, PLAIN) == (
        "  sku == '日本' x",
        "                ^",
    )
    assert pointed("a\t\x1b[2J ?", 7, PLAIN) == (r"  a\t\e[2J ?", "           ^")
    assert pointed("é ?", 2, ASCII) == (r"  \u{E9} ?", "         ^")


def test_a_long_filter() -> None:
    text = "id > 1 and " * 20 + "nope" + " or id < 5" * 20
    line, caret = pointed(text, 220, Style(width=40))
    assert line == "  … 1 and id > 1 and nope or id < 5 or…"
    assert line[caret.index("^") :].startswith("nope")
    line, caret = pointed(text, len(text), Style(width=40))
    assert line.endswith("or id < 5")
    assert caret.index("^") == len(line)


@pytest.mark.parametrize("style", [PLAIN, ASCII, Style(width=40), Style(width=20)])
@given(text=st.text(st.characters(), max_size=200), part=st.floats(0, 1))
def test_it_stays_within_the_width(style: Style, text: str, part: float) -> None:
    position = int(part * len(text))
    line, caret = pointed(text, position, style)
    assert width(line) < style.width
    assert width(caret) <= style.width
    assert caret.strip() == "^"
    right = escape(text[position:], style)
    if width(right) <= style.width // 2 - 4:
        assert line.endswith(right)
        assert width(line[: len(line) - len(right)]) == caret.index("^")
