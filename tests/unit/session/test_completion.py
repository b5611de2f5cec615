"""Completion of a line, and its possible results."""

from __future__ import annotations

import pytest

from rbtrace_py.session.inside.completion import (
    MOST_BYTES,
    MOST_NAMES,
    Bounded,
    Question,
    choices,
    question,
)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("pu", ("", "", "pu")),
        ("x = fo", ("", "", "fo")),
        ("puts(Or", ("", "", "Or")),
        ("@lin", ("", "", "@lin")),
        ("$std", ("", "", "$std")),
        ("order.li", ("order", ".", "li")),
        ("order&.li", ("order", "&.", "li")),
        ("a + order.", ("order", ".", "")),
        ("@order.li", ("@order", ".", "li")),
        ("Order.fi", ("Order", ".", "fi")),
        ("Shop::Or", ("Shop", "::", "Or")),
        ("Shop::Order.fi", ("Shop::Order", ".", "fi")),
        ("::Shop::", ("::Shop", "::", "")),
        ('x = "a b".si', ('"a b"', ".", "si")),
        ("5.ti", ("5", ".", "ti")),
        ("größe.wei", ("größe", ".", "wei")),
    ],
)
def test_questions(before: str, expected: tuple[str, str, str]) -> None:
    asked = question(before)
    assert asked is not None
    assert (asked.receiver, asked.mark, asked.word) == expected


@pytest.mark.parametrize(
    "before",
    ["", "  ", "x + ", "a.b.c", "a.b.", "f(x).s", "x[0].s", "{}.s", "a.b?.c", ":sym"],
)
def test_expressions_that_require_a_call_are_not_completed(before: str) -> None:
    assert question(before) is None


def test_names_are_not_believed() -> None:
    asked = Question("order", ".", "li")
    names = [
        "lines",
        "line?",
        "line!",
        "line=",
        "other",
        "li\x1b[2J",
        "li ne",
        "li" * 99,
    ]
    assert choices(asked, "\n".join(names).encode() + b"\nli\xff") == [
        *("line!", "line?", "lines"),
    ]
    many = "\n".join(f"li{number}" for number in range(10_000)).encode()
    assert len(choices(asked, many)) == MOST_NAMES


def test_keywords_stand_alone() -> None:
    assert choices(Question("", "", "uns"), b"") == []
    assert choices(Question("", "", "un"), b"unpack\n") == [
        *("undef", "unless", "unpack", "until"),
    ]
    assert choices(Question("x", ".", "un"), b"unpack\n") == ["unpack"]


def test_an_answer_is_bounded() -> None:
    answer = Bounded()
    for _ in range(3):
        answer(bytes(MOST_BYTES // 2 + 1))
    assert len(answer.data) == MOST_BYTES
