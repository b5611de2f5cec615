"""A filter's C code, compiled and run, compared with ``evaluate``."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rbtrace_py.aggregate.histogram import float_bits
from rbtrace_py.bpf.compiled_filter import CompiledFilter
from rbtrace_py.model.events import Value
from rbtrace_py.model.probes import NIL_BOOL, NIL_FLOAT_BITS, NIL_INTEGER, OperandType
from rbtrace_py.session.probes.filters import (
    MAX_STRING,
    parse_filter,
)
from rbtrace_py.session.probes.filters.ccode import compile_filter
from rbtrace_py.session.probes.filters.evaluation import evaluate

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")

TYPES = {
    "id": OperandType.INTEGER,
    "raw": OperandType.UNKNOWN,
    "ratio": OperandType.FLOAT,
    "ok": OperandType.BOOL,
    "sku": OperandType.STRING,
}
HEADER = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef uint64_t u64;
typedef int64_t s64;
#define SLOT(i) (slot[i])
#define FKEY(x) ((s64)(x) < 0 ? -(s64)((x) & 0x7fffffffffffffffULL) : (s64)(x))
#define IS_NAN(x) (((x) & 0x7fffffffffffffffULL) > 0x7ff0000000000000ULL)
#define TEXT(i) ((const char *)SLOT(i))
#define STREQ(i, k) (strcmp(TEXT(i), string[k]) == 0)
#define STRPREFIX(i, k) (strncmp(TEXT(i), string[k], strlen(string[k])) == 0)
"""
ALLOWED = re.compile(
    r"(?:SLOT\(\d+\)|FKEY|IS_NAN|STREQ\(\d+, \d+\)|STRPREFIX\(\d+, \d+\)"
    r"|0x[0-9a-f]+ULL|\(s64\)|&&|\|\||[=!<>]=|[()!<> ])*"
)

integers = st.one_of(
    st.integers(-3, 3), st.integers(-(2**63) + 1, 2**63 - 1), st.just(2**63 - 1)
)
unsigned = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1))
floats = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324, math.inf, -math.inf]),
    st.floats(),
)
anything = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.one_of(
    st.sampled_from(["", "a", "ab", "abc", "b"]),
    st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9
    ),
).filter(lambda text: len(text.encode()) <= MAX_STRING)
rows = st.fixed_dictionaries(
    {
        "id": st.none() | integers,
        "raw": unsigned,
        "ratio": st.none() | floats,
        "ok": st.none() | st.booleans(),
        "sku": st.none() | texts,
    }
)
order = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
equality = st.sampled_from(["==", "!="])


def quote(text: str) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'


def joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(" ".join)


finite = floats.filter(math.isfinite)
comparisons = st.one_of(
    joined(st.just("id"), order, integers.map(str)),
    joined(integers.map(str), order, st.just("id")),
    joined(st.just("raw"), order, unsigned.map(str)),
    joined(st.just("ratio"), order, finite.map(repr)),
    joined(st.just("ratio"), order, integers.map(str)),
    joined(st.just("ok"), equality, st.sampled_from(["true", "false"])),
    joined(st.just("sku"), st.sampled_from(["==", "!=", "^="]), texts.map(quote)),
    joined(st.sampled_from(["id", "ratio", "ok", "sku"]), equality, st.just("nil")),
    st.just("ok"),
)
filters = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"({two[0]}) and ({two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} or {two[1]})"),
        inner.map(lambda one: f"not ({one})"),
    ),
    max_leaves=6,
)


def c_string(data: bytes) -> str:
    return '"' + "".join(f"\\{byte:03o}" for byte in data) + '"'


def c_raw(name: str, value: Value) -> str:
    """The raw operand, as the gem passes it."""
    if isinstance(value, str):
        return f"(u64){c_string(value.encode())}"
    nil = {"id": NIL_INTEGER, "ratio": NIL_FLOAT_BITS, "ok": NIL_BOOL, "sku": 0}
    if value is None:
        raw = nil[name]
    else:
        raw = float_bits(value) if isinstance(value, float) else int(value)  # type: ignore[arg-type]
    return f"0x{raw & 0xFFFFFFFFFFFFFFFF:x}ULL"


def c_block(compiled: CompiledFilter, row: Mapping[str, Value]) -> str:
    """Prints 1 or 0 for one filter and one event."""
    slots = ", ".join(c_raw(name, row[name]) for name in compiled.operands)
    strings = ", ".join(map(c_string, compiled.strings))
    return (
        f"{{ u64 slot[] = {{{slots}}}; const char *string[] = {{{strings or 0}}};"
        f" (void)string; putchar({compiled.expression} ? '1' : '0'); }}"
    )


def run_c(cases: Sequence[tuple[CompiledFilter, Mapping[str, Value]]]) -> str:
    body = "\n".join(c_block(*case) for case in cases)
    source = f"{HEADER}\nint main(void) {{\n{body}\nreturn 0; }}\n"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "filters")
        command = ["gcc", "-w", "-O0", "-x", "c", "-", "-o", str(program)]
        subprocess.run(command, input=source.encode(), check=True)
        return subprocess.run(
            [program], check=True, capture_output=True, text=True
        ).stdout


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(st.lists(st.tuples(filters, rows), min_size=100, max_size=200))
def test_c_agrees(cases: list[tuple[str, dict[str, Value]]]) -> None:
    trees = [parse_filter(text, TYPES) for text, _ in cases]
    compiled = [compile_filter(tree) for tree in trees]
    assert all(ALLOWED.fullmatch(each.expression) for each in compiled)
    pairs = list(zip(cases, trees, strict=True))
    expected = [evaluate(tree, row) for (_, row), tree in pairs]
    answers = run_c([(one, row) for one, (_, row) in zip(compiled, cases, strict=True)])
    wrong = [
        case
        for case, answer, right in zip(cases, answers, expected, strict=True)
        if (answer == "1") != right
    ]
    assert wrong == []
