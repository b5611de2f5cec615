"""Lists of Ruby expressions, taken apart at the right commas."""

from __future__ import annotations

import random

import pytest

from processes import times
from rbtrace_py.session.methods.expressions import BadExpressions, split_expressions

SEED = 20_260_106


@pytest.mark.parametrize(
    ("text", "expressions"),
    [
        ("(self)", ["self"]),
        ("( a , @b,self.c )", ["a", "@b", "self.c"]),
        ("(f(1, 2), [3, {a: 4, b: 5}])", ["f(1, 2)", "[3, {a: 4, b: 5}]"]),
        ("""("a,)", 'b,(', `c,`)""", ['"a,)"', "'b,('", "`c,`"]),
        (r"""("\",", '\',')""", [r'"\","', r"'\','"]),
        ("""("#{h["a,"]},", b)""", ['"#{h["a,"]},"', "b"]),
        ("""('#{,', b)""", ["'#{,'", "b"]),
        ("(x / 2, y / 3)", ["x / 2", "y / 3"]),
        ("(x =~ /,)/, /[,]/, y)", ["x =~ /,)/", "/[,]/", "y"]),
        ("(a, a, b)", ["a", "b"]),
    ],
)
def test_lists(text: str, expressions: list[str]) -> None:
    assert split_expressions(text) == (tuple(expressions), len(text))
    found, end = split_expressions(f"name{text} rest", 4)
    assert (list(found), end) == (expressions, 4 + len(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(", "'\\)' is missing at its end"),
        ("(a, [b)", "unmatched '\\)'"),
        ("(a]", "unmatched '\\]'"),
        ("('a)", "a quote is missing"),
        ("()", "an expression is missing"),
        ("(a,,b)", "an expression is missing"),
        (f"({','.join(map(str, range(17)))})", "more than 16"),
        (f"({'é' * 513})", "longer than 1024 bytes"),
    ],
)
def test_no_lists(text: str, why: str) -> None:
    with pytest.raises(BadExpressions, match=why):
        split_expressions(text)


def test_anything_ends() -> None:
    chance = random.Random(SEED)
    for _ in range(times(5_000)):
        text = "(" + "".join(chance.choices("ab,()[]{}'\"`/\\#= ", k=30))
        try:
            found, end = split_expressions(text)
        except BadExpressions:
            continue
        assert all(found)
        assert text[end - 1] == ")"
