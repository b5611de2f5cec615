"""Every error of a filter, with its message and position."""

from __future__ import annotations

import pytest

from rbtrace_py.errors import FilterError
from rbtrace_py.model.probes import Operand, OperandType
from rbtrace_py.session.probes.filters import parse_filter, time_notes

OPERANDS: dict[str, OperandType | Operand] = {
    "id": OperandType.INTEGER,
    "sku": OperandType.STRING,
    "state": OperandType.SYMBOL,
    "ratio": OperandType.FLOAT,
    "ok": OperandType.BOOL,
    "duration_ns": OperandType.INTEGER,
    "arg0": OperandType.UNKNOWN,
    "arg1": Operand("arg1", signed=True, size=4),
}
MARK = "▼"

WRONG = [
    ("", "an empty filter"),
    ("  ▼", "an empty filter"),
    ("▼idd > 1", "no argument 'idd'; did you mean id or tid or pid?"),
    (
        "▼xyz > 1",
        "no argument 'xyz'; there are pid, tid, id, sku, state, ratio, ok,"
        " duration_ns, arg0, arg1",
    ),
    ("id ▼= 1", "use '==' for equality, not '='"),
    ("sku ▼=~ 'a'", "regular expressions are not supported; '^=' compares a prefix"),
    ("id >▼", "expected a name or a constant"),
    ("id > ▼and", "expected a name or a constant"),
    ("▼> 1", "expected a name or a constant"),
    ("▼id 1", "expected a comparison after this name"),
    ("▼id", "expected a comparison after this name"),
    ("▼1", "a constant alone is not a comparison"),
    ("▼nil", "a constant alone is not a comparison"),
    ("▼1 < 2", "one side of a comparison must be a name"),
    ("id < ▼tid", "a name can only be compared with a constant"),
    ("1 < id ▼< 5", "comparisons cannot be chained; join them with 'and'"),
    ("▼(id > 1", "'(' is not closed"),
    ("(id > 1 ▼id)", "expected 'and', 'or' or the end"),
    ("id > 1▼)", "unmatched ')'"),
    ("id > 1 ▼id", "expected 'and', 'or' or the end"),
    ("id > ▼9223372036854775808", "out of range for a signed 64-bit number"),
    ("id > ▼-9223372036854775809", "out of range for a signed 64-bit number"),
    ("id > ▼0x8000000000000000", "out of range for a signed 64-bit number"),
    ("id > ▼1e19", "out of range for a signed 64-bit number"),
    ("ratio > ▼9223372036854775808", "out of range for a signed 64-bit number"),
    ("arg0 > ▼18446744073709551616", "out of range for an unsigned 64-bit number"),
    ("arg0 > ▼-1", "out of range for an unsigned 64-bit number"),
    ("ratio > ▼1e999", "a number too large for a Float"),
    ("id > ▼1.5", "expected a whole number"),
    ("id > ▼12abc", "not a number (times end in ns, us, ms or s)"),
    ("id > ▼1__0", "not a number (times end in ns, us, ms or s)"),
    ("id > ▼0xfg", "not a number (times end in ns, us, ms or s)"),
    ("id > ▼5ms", "only names that end in _ns are times"),
    ("ratio > ▼5ms", "only names that end in _ns are times"),
    ("duration_ns > ▼0.5ns", "not a whole number of nanoseconds"),
    ("duration_ns > ▼1e-4000s", "not a whole number of nanoseconds"),
    ("duration_ns > ▼1e4000s", "out of range for a signed 64-bit number"),
    ("duration > ▼15", "a time has a unit: 15ms, 2s"),
    ("▼15 > duration", "a time has a unit: 15ms, 2s"),
    ("duration == ▼'1'", "duration_ns is an Integer"),
    ("id == ▼'1'", "id is an Integer"),
    ("ratio == ▼'1'", "ratio is a Float"),
    ("ok == ▼1", "ok is a boolean"),
    ("id == ▼true", "id is an Integer"),
    ("sku == ▼1", "sku is a String"),
    ("sku == ▼true", "sku is a String"),
    ("arg0 == ▼'a'", "arg0 is an unsigned number"),
    ("arg1 == ▼'a'", "arg1 is a number"),
    ("sku ▼< 'a'", "strings can only be compared with '==', '!=' or '^='"),
    ("ok ▼< true", "true and false can only be compared with '==' or '!='"),
    ("id ▼^= 5", "'^=' works only on strings"),
    ("'a' ▼^= sku", "'^=' needs the name on its left"),
    ("id ▼< nil", "nil can only be compared with '==' or '!='"),
    ("sku ▼^= nil", "nil can only be compared with '==' or '!='"),
    ("arg0 == ▼nil", "arg0 is never nil"),
    ("pid == ▼nil", "pid is never nil"),
    ("sku == ▼'abc", "a string without its closing '"),
    ('sku == ▼"abc\\"', 'a string without its closing "'),
    ("sku == 'a▼\\q'", "unknown escape sequence"),
    ("sku == 'a▼\\u{d800}'", "no such character"),
    ("sku == 'a▼\\u{110000}'", "no such character"),
    ("sku == ▼'a\\x00'", "strings of probes cannot contain NUL"),
    (
        f"sku == ▼'{'a' * 64}'",
        "strings are compared up to 63 bytes, this one has 64",
    ),
    (
        f"sku == ▼'{'é' * 32}'",
        "strings are compared up to 63 bytes, this one has 64",
    ),
    ("id > 1 ▼; drop", "unexpected ';'"),
    ("id > 1 ▼\x1b", r"unexpected '\x1b'"),
    (f"{'(' * 32}▼id > 1{')' * 32}", "nested deeper than 32"),
    (f"{'not ' * 32}▼id > 1", "nested deeper than 32"),
    (f"{'id > 1 or ' * 64}▼id > 1", "a filter has at most 64 comparisons"),
    (f"{' ' * 4000}▼ ", "a filter has at most 4000 characters"),
]


@pytest.mark.parametrize(("marked", "message"), WRONG)
def test_wrong(marked: str, message: str) -> None:
    text = marked.replace(MARK, "")
    with pytest.raises(FilterError) as caught:
        parse_filter(text, OPERANDS)
    assert str(caught.value) == message
    assert caught.value.text == text
    assert caught.value.position == max(marked.find(MARK), 0)


@pytest.mark.parametrize(
    ("text", "position"),
    [("(" * 3999, 32), ("not " * 999, 128), ("!" * 3999, 32), ("!(" * 1999, 32)],
)
def test_nesting_is_refused_where_it_gets_too_deep(text: str, position: int) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text, OPERANDS)
    assert str(caught.value) == "nested deeper than 32"
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("id > 1 and duration_ns > 15", "duration_ns > 15"),
        ("15 <= duration_ns", "duration_ns >= 15"),
        ("duration_ns > 1.5", "duration_ns > 1.5"),
    ],
)
def test_a_time_that_is_too_short_to_be_meant(text: str, note: str) -> None:
    (found,) = time_notes(text)
    short = note.replace("_ns", "") + "ms"
    assert found == f"{note} is in nanoseconds; milliseconds are {short}"


@pytest.mark.parametrize(
    "text",
    ["duration_ns > 15ms", "duration > 15ms", "duration_ns > 20_000", "id > 15", "ok"],
)
def test_a_time_that_is_meant(text: str) -> None:
    assert time_notes(text) == []
