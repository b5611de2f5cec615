"""Words and files that select methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from rbtrace_py.agent.arming import Selector
from rbtrace_py.errors import UsageError
from rbtrace_py.session.methods.method_sets import METHOD_SETS
from rbtrace_py.session.methods.selectors import MOST, parse_selector, selectors_of


@pytest.mark.parametrize(
    ("word", "owner", "kind", "name"),
    [
        ("sleep", None, None, "sleep"),
        ("Integer", None, None, "Integer"),
        ("String#gsub", "String", "instance", "gsub"),
        ("Process.pid", "Process", "singleton", "pid"),
        ("Dir.", "Dir", "singleton", None),
        ("Kernel#", "Kernel", "instance", None),
        ("A::B_1.save!", "A::B_1", "singleton", "save!"),
        ("Array#[]=", "Array", "instance", "[]="),
        ("Kernel#`", "Kernel", "instance", "`"),
        ("Foo.<=>", "Foo", "singleton", "<=>"),
        ("Integer#-@", "Integer", "instance", "-@"),
        ("=~", None, None, "=~"),
        ("Été#naïf?", "Été", "instance", "naïf?"),
        ("name=", None, None, "name="),
    ],
)
def test_forms(word: str, owner: str | None, kind: str | None, name: str) -> None:
    assert parse_selector(word) == Selector(owner, kind, name)


@pytest.mark.parametrize(
    "word",
    ["", "a b", "1x", "#x", ".x", "Foo#.", "A::B", "A:B#c", "x\n", "#", "x" * 1025],
)
def test_what_selects_nothing(word: str) -> None:
    with pytest.raises(UsageError, match="does not select a method") as raised:
        parse_selector(word)
    assert raised.value.hint


def test_expressions() -> None:
    assert parse_selector("String#gsub(self, @a, [b, c])") == Selector(
        "String", "instance", "gsub", ("self", "@a", "[b, c]")
    )
    assert parse_selector("x( f(1,2) )") == Selector(None, None, "x", ("f(1,2)",))


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("x(", "missing at its end"),
        ("x()", "an expression is missing"),
        ("x(a) b", "unexpected 'b'"),
        ("x(a))", "unexpected"),
        ("(a)", "does not select a method"),
        ("A::B(a)", "does not select a method"),
    ],
)
def test_expressions_that_are_none(word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as raised:
        parse_selector(word)
    assert raised.value.hint


def test_expressions_where_no_values_are_shown() -> None:
    with pytest.raises(UsageError, match="single calls") as raised:
        selectors_of(["String#gsub(@a)"], ())
    assert "calls PID -m 'String#gsub(@a)'" in raised.value.hint
    assert "only 'String#gsub' here" in raised.value.hint


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my.tracer"
    path.write_text(
        "# mine\nString#gsub # slow\n\n  sleep  \nString#gsub\n"
        'x(a, "y #{b} # c") # (both)\nz(c)\n'
    )
    assert selectors_of(["puts"], [str(path)]) == [
        Selector(None, None, "puts"),
        Selector("String", "instance", "gsub"),
        Selector(None, None, "sleep"),
        Selector(None, None, "x", ("a", '"y #{b} # c"')),
        Selector(None, None, "z", ("c",)),
    ]


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(UsageError, match="No such file") as raised:
        selectors_of([], [str(path)])
    assert "sidekiq" in raised.value.hint
    path.write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        selectors_of([], [str(path)])
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="does not select a method"):
        selectors_of([], [str(path)])
    path.write_text("a\nb c\n")
    with pytest.raises(UsageError, match=r"a, line 2: 'b c'"):
        selectors_of([], [str(path)])
    path.write_text("\n".join(f"a{n}" for n in range(MOST + 1)))
    with pytest.raises(UsageError, match="too many"):
        selectors_of([], [str(path)])


@pytest.mark.parametrize("name", sorted(METHOD_SETS))
def test_sets(name: str) -> None:
    found = selectors_of([], [name])
    assert len(found) == len(METHOD_SETS[name]) > 5
