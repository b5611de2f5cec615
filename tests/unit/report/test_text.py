"""Hostile strings are escaped, quoted, measured, and cut."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.aggregate.results import Group
from rbtrace_py.model.probes import OperandRole
from rbtrace_py.report.style import ASCII, PLAIN
from rbtrace_py.report.text import (
    cut,
    escape,
    inspect,
    inspect_symbol,
    key_label,
    lines_of,
    pad,
    pad_left,
    replace_undecodable,
    width,
)


@pytest.mark.parametrize(
    ("text", "shown", "in_ascii"),
    [
        ("sku-1", "sku-1", "sku-1"),
        ("a\\b", "a\\\\b", "a\\\\b"),
        ("a\n\t\r\0b", r"a\n\t\r\x00b", r"a\n\t\r\x00b"),
        ("\x1b[31mred", r"\e[31mred", r"\e[31mred"),
        ("\x7f\x9b31m", r"\x7F\u{9B}31m", r"\x7F\u{9B}31m"),
        ("a\u202eb\u2066c", r"a\u{202E}b\u{2066}c", r"a\u{202E}b\u{2066}c"),
        ("a\u200bb\ufeffc", r"a\u{200B}b\u{FEFF}c", r"a\u{200B}b\u{FEFF}c"),
        ("a\u2028b", r"a\u{2028}b", r"a\u{2028}b"),
        ("\udcff\udc80", r"\xFF\x80", r"\xFF\x80"),
        ("\ue000\U0010ffff", r"\u{E000}\u{10FFFF}", r"\u{E000}\u{10FFFF}"),
        ("café", "café", r"caf\u{E9}"),
        ("日本", "日本", r"\u{65E5}\u{672C}"),
        ("e\u0301", "e\u0301", r"e\u{301}"),
        ("e" + "\u0301" * 3, "e\u0301\u0301" + r"\u{301}", "e" + r"\u{301}" * 3),
    ],
)
def test_escape(text: str, shown: str, in_ascii: str) -> None:
    assert escape(text, PLAIN) == shown
    assert escape(text, ASCII) == in_ascii


@given(st.text(st.characters()))
def test_escaped_text_holds_nothing_hidden(text: str) -> None:
    for character in escape(text, PLAIN):
        assert unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl")
    assert escape(text, ASCII).isascii()
    assert width(escape(text, PLAIN)) >= 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", '""'),
        ("abc", '"abc"'),
        ('say "hi"', r'"say \"hi\""'),
        ("#{x} #$x #@x # #x", r'"\#{x} \#$x \#@x # #x"'),
        ("##{", r'"#\#{"'),
        ("a\n\\", r'"a\n\\"'),
        ("a#", '"a#"'),
    ],
)
def test_inspect(text: str, shown: str) -> None:
    assert inspect(text, PLAIN) == shown


def test_inspect_of_a_cut_text() -> None:
    assert inspect("abc", PLAIN, truncated=True) == '"abc"…'
    assert inspect("abc", ASCII, truncated=True) == '"abc"...'


@pytest.mark.parametrize(
    ("text", "shown"),
    [("paid", ":paid"), ("ok?", ":ok?"), ("a b", ':"a b"'), ("", ':""'), ("1", ':"1"')],
)
def test_inspect_symbol(text: str, shown: str) -> None:
    assert inspect_symbol(text, PLAIN) == shown


def test_symbols_that_end_with_a_newline_are_quoted() -> None:
    assert inspect_symbol("paid\n", PLAIN) == r':"paid\n"'


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        (Group("s", None, 1), "nil"),
        (Group("s", "nil", 1), '"nil"'),
        (Group("s", "(other)", 1), '"(other)"'),
        (Group("s", None, 1, is_other=True), "(other)"),
        (Group("s", "", 1), '""'),
        (Group("s", " a", 1), '" a"'),
        (Group("s", "a b", 1), "a b"),
        (Group("s", "abc", 1, truncated=True), "abc…"),
        (Group("s", "a\x1b[m", 1), r"a\e[m"),
        (Group("s", 42, 1), "42"),
        (Group("s", -1.5, 1), "-1.5"),
        (Group("s", float("nan"), 1), "NaN"),
        (Group("s", True, 1), "true"),
        (Group("s", False, 1), "false"),
    ],
)
def test_key_label(group: Group, shown: str) -> None:
    assert key_label(group, PLAIN) == shown


def test_outcomes_are_named() -> None:
    outcome = OperandRole.OUTCOME
    groups = [Group("s", key, 1, key_role=outcome) for key in (0, 1, 2, 3, None)]
    shown = [key_label(group, PLAIN) for group in groups]
    assert shown == ["returned", "raised", "thrown", "3", "nil"]
    assert key_label(Group("s", 1, 1), PLAIN) == "1"


def test_lines_of_a_text() -> None:
    sql = "SELECT id, name FROM users"
    assert list(lines_of(sql, 26)) == [sql]
    assert list(lines_of(sql, 16)) == ["SELECT id, name ", "FROM users"]
    assert list(lines_of("日本日本", 5)) == ["日本", "日本"]
    assert list(lines_of("", 2)) == [""]
    for columns in range(2, 30):
        assert "".join(lines_of(sql, columns)) == sql
        assert all(width(line) <= columns for line in lines_of(sql, columns))


def test_cut_by_columns() -> None:
    assert cut("abcdef", 6, PLAIN) == "abcdef"
    assert cut("abcdef", 5, PLAIN) == "abcd…"
    assert cut("abcdef", 5, ASCII) == "ab..."
    assert cut("日本日本", 8, PLAIN) == "日本日本"
    assert cut("日本日本", 7, PLAIN) == "日本日…"
    assert cut("日本日本", 6, PLAIN) == "日本…"
    assert cut("abc", 2, ASCII) == ".."


@given(st.text(), st.integers(1, 30))
def test_cut_fits(text: str, columns: int) -> None:
    assert width(cut(escape(text, PLAIN), columns, PLAIN)) <= columns


def test_pad_by_columns() -> None:
    assert pad("日本", 6) == "日本  "
    assert pad_left("e\u0301", 3) == "  e\u0301"


def test_replace_undecodable() -> None:
    text = b"a\xff\xe2\x82b\xc3\xa9".decode("utf-8", "surrogateescape")
    assert replace_undecodable(text) == "a\ufffd\ufffdb\xe9"
