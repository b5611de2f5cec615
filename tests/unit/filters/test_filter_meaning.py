"""The meaning of filters, and their C code."""

from __future__ import annotations

import math

import pytest

from rbtrace_py.bpf.compiled_filter import CompiledFilter
from rbtrace_py.model.events import UNREADABLE, Value
from rbtrace_py.model.probes import Operand, OperandType
from rbtrace_py.session.probes.filters import (
    And,
    Comparison,
    Kind,
    Not,
    Or,
    parse_filter,
)
from rbtrace_py.session.probes.filters.ccode import compile_filter
from rbtrace_py.session.probes.filters.evaluation import evaluate

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
VALUES: dict[str, Value] = {
    "id": 42,
    "sku": "abc-1",
    "state": "paid",
    "ratio": 0.25,
    "ok": True,
    "duration_ns": 5_000_000,
    "arg0": 2**64 - 1,
    "arg1": -3,
    "pid": 100,
    "tid": 101,
}
NOTHING: dict[str, Value] = dict.fromkeys(VALUES)


def passes(text: str, values: dict[str, Value] = VALUES) -> bool:
    return evaluate(parse_filter(text, OPERANDS), values)


@pytest.mark.parametrize(
    "text",
    [
        "id == 42",
        "id == 0x2A and id == 0x2_a and id == 4_2 and id == 4.2e1",
        "id > -1 and -1 < id and id >= 42 and 42 <= id and not id < 42",
        "id != 41 and 41 != id",
        "sku == 'abc-1' and 'abc-1' == sku and sku != 'abc' and sku ^= 'abc'",
        'sku == "\\x61bc\\u002d\\u{31}"',
        "state == :paid and state == 'paid' and state != :unpaid",
        "ratio == 0.25 and ratio < 1 and ratio > -.5 and ratio <= 25e-2",
        "ok and ok == true and ok != false and not ok == false",
        "duration_ns == 5ms and duration_ns == 5000us and duration_ns < 0.1s",
        "duration == 5ms and duration > 4_999_999ns and 1s > duration",
        "duration_ns == 5000µs and duration_ns > 4_999_999ns",
        "arg0 == 0xffffffffffffffff and arg0 > 1 and arg1 < -2",
        "pid == 100 and tid > 100",
        "id == 1 or id == 42",
        "id == 1 and id == 2 or id == 42",
        "id == 42 or id == 1 and id == 2",
        "!(id == 1 || id == 2) && id == 42",
        "not not id == 42",
        "id != nil and nil != sku",
    ],
)
def test_true(text: str) -> None:
    assert passes(text)


@pytest.mark.parametrize("name", ["id", "sku", "state", "ratio", "ok"])
def test_nil_equals_nil_only(name: str) -> None:
    constant = {"id": "1", "ratio": "1.0", "ok": "true"}.get(name, "'a'")
    assert passes(f"{name} == nil", NOTHING)
    assert not passes(f"{name} != nil", NOTHING)
    assert not passes(f"{name} == {constant}", NOTHING)
    assert not passes(f"{name} != {constant}", NOTHING)
    assert passes(f"not {name} == {constant}", NOTHING)


def test_nan_is_unequal_to_everything() -> None:
    values = {**VALUES, "ratio": math.nan}
    assert passes("ratio != 1.0 and ratio != nil", values)
    assert not passes("ratio == 1.0 or ratio < 1.0 or ratio >= 1.0", values)


def test_an_unreadable_value_equals_nothing() -> None:
    values = {**VALUES, "sku": UNREADABLE}
    assert passes("sku != 'a' and sku != nil", values)
    assert not passes("sku == 'a' or sku ^= '' or sku == nil", values)


def test_bytes_that_are_no_utf8() -> None:
    values = {**VALUES, "sku": b"\xff\xfe".decode("utf-8", "surrogateescape")}
    assert passes("sku == '\\xff\\xfe'", values)
    assert passes("sku ^= '\udcff'", values)


def test_an_operand_goes_before_a_pseudo_operand() -> None:
    tree = parse_filter("pid == 'a'", {"pid": OperandType.STRING})
    assert tree == Comparison("pid", Kind.TEXT, "==", b"a")


def test_tree() -> None:
    assert parse_filter("not (id > 1 or 5 < id) and ok", OPERANDS) == And(
        (
            Not(
                Or(
                    (
                        Comparison("id", Kind.SIGNED, ">", 1),
                        Comparison("id", Kind.SIGNED, ">", 5),
                    )
                )
            ),
            Comparison("ok", Kind.BOOL, "==", True),
        )
    )


NIL = "0x8000000000000000ULL"
NAN = "0x7ff8726274726163ULL"


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("id > 10", f"(SLOT(0) != {NIL} && (s64)SLOT(0) > (s64)0xaULL)"),
        (
            "id == -1",
            f"(SLOT(0) != {NIL} && (s64)SLOT(0) == (s64){'0x' + 'f' * 16}ULL)",
        ),
        ("id == nil", f"(SLOT(0) == {NIL})"),
        ("arg0 <= 7", "(SLOT(0) <= 0x7ULL)"),
        ("arg1 <= 7", "((s64)SLOT(0) <= (s64)0x7ULL)"),
        ("ok != true", "(SLOT(0) != 0x2ULL && (s64)SLOT(0) != (s64)0x1ULL)"),
        ("sku == 'a'", "(SLOT(0) != 0x0ULL && STREQ(0, 0))"),
        ("sku != 'a'", "(SLOT(0) != 0x0ULL && !STREQ(0, 0))"),
        ("sku ^= 'a'", "(SLOT(0) != 0x0ULL && STRPREFIX(0, 0))"),
        (
            "ratio < 0",
            "(!IS_NAN(SLOT(0)) && FKEY(SLOT(0)) < (s64)0x0ULL)",
        ),
        (
            "ratio != 1.0",
            f"(SLOT(0) != {NAN} && (IS_NAN(SLOT(0)) || "
            "FKEY(SLOT(0)) != (s64)0x3ff0000000000000ULL))",
        ),
        (
            "ratio > -1.0",
            "(!IS_NAN(SLOT(0)) && FKEY(SLOT(0)) > (s64)0xc010000000000000ULL)",
        ),
        ("not arg0 == 1", "!(SLOT(0) == 0x1ULL)"),
        (
            "arg0 == 1 or not (arg0 == 2 and tid == 3)",
            "((SLOT(0) == 0x1ULL) || !((SLOT(0) == 0x2ULL) && (SLOT(1) == 0x3ULL)))",
        ),
    ],
)
def test_expression(text: str, expression: str) -> None:
    assert compile_filter(parse_filter(text, OPERANDS)).expression == expression


def test_operands_and_strings_are_numbered_once() -> None:
    tree = parse_filter("sku == 'a' or state == 'b' or sku == 'b' or id == 1", OPERANDS)
    assert compile_filter(tree) == CompiledFilter(
        "((SLOT(0) != 0x0ULL && STREQ(0, 0)) || (SLOT(1) != 0x0ULL && STREQ(1, 1)) || "
        "(SLOT(0) != 0x0ULL && STREQ(0, 1)) || "
        f"(SLOT(2) != {NIL} && (s64)SLOT(2) == (s64)0x1ULL))",
        ("sku", "state", "id"),
        (b"a", b"b"),
    )
