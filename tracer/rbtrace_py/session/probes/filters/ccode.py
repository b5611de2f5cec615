"""The C expression of a filter, which the kernel evaluates for each event."""

from __future__ import annotations

from rbtrace_py.aggregate.histogram import float_bits
from rbtrace_py.bpf.compiled_filter import CompiledFilter
from rbtrace_py.model.probes import NIL_BOOL, NIL_FLOAT_BITS, NIL_INTEGER
from rbtrace_py.session.probes.filters.tree import (
    And,
    Comparison,
    Filter,
    Kind,
    Not,
    Or,
)


def float_order(bits: int) -> int:
    """Return an s64 with the order of doubles; both zeros yield 0.

    Args:
        bits: The 64 bits of a double.

    In C: ``(s64)x < 0 ? -(s64)(x & 0x7fffffffffffffffULL) : (s64)x``.
    """
    magnitude = bits & 0x7FFFFFFFFFFFFFFF
    return -magnitude if bits >> 63 else magnitude


def compile_filter(tree: Filter) -> CompiledFilter:
    """Return the C expression of ``tree``."""
    writer = _Writer()
    expression = writer.write(tree)
    return CompiledFilter(expression, tuple(writer.operands), tuple(writer.strings))


def _unsigned(number: int) -> str:
    return f"0x{number & 0xFFFFFFFFFFFFFFFF:x}ULL"


_NIL = {
    Kind.SIGNED: _unsigned(NIL_INTEGER),
    Kind.FLOAT: _unsigned(NIL_FLOAT_BITS),
    Kind.BOOL: _unsigned(NIL_BOOL),
    Kind.TEXT: _unsigned(0),
}


class _Writer:
    """Writes a tree as C, and numbers operands and strings in order of appearance."""

    def __init__(self) -> None:
        self.operands: list[str] = []
        self.strings: list[bytes] = []

    def write(self, tree: Filter) -> str:
        if isinstance(tree, And):
            return f"({' && '.join(map(self.write, tree.terms))})"
        if isinstance(tree, Or):
            return f"({' || '.join(map(self.write, tree.terms))})"
        if isinstance(tree, Not):
            return f"!{self.write(tree.term)}"
        return f"({self._comparison(tree)})"

    def _comparison(self, term: Comparison) -> str:
        slot = _number(self.operands, term.operand)
        raw = f"SLOT({slot})"
        if term.constant is None:
            return f"{raw} {term.op} {_NIL[term.kind]}"
        if term.kind is Kind.FLOAT:
            return _float_comparison(raw, term)
        if term.kind is Kind.TEXT:
            test = self._text_comparison(slot, term)
        else:
            test = _integer_comparison(raw, term)
        return f"{raw} != {_NIL[term.kind]} && {test}" if term.kind.has_nil else test

    def _text_comparison(self, slot: int, term: Comparison) -> str:
        assert isinstance(term.constant, bytes)
        string = _number(self.strings, term.constant)
        if term.op == "^=":
            return f"STRPREFIX({slot}, {string})"
        return f"{'!' if term.op == '!=' else ''}STREQ({slot}, {string})"


def _number(known: list[str] | list[bytes], item: str | bytes) -> int:
    if item not in known:
        known.append(item)  # type: ignore[arg-type]
    return known.index(item)  # type: ignore[arg-type]


def _integer_comparison(raw: str, term: Comparison) -> str:
    assert isinstance(term.constant, int)
    literal = _unsigned(term.constant)
    if term.kind is Kind.RAW_UNSIGNED:
        return f"{raw} {term.op} {literal}"
    return f"(s64){raw} {term.op} (s64){literal}"


def _float_comparison(raw: str, term: Comparison) -> str:
    assert isinstance(term.constant, float)
    literal = _unsigned(float_order(float_bits(term.constant)))
    test = f"FKEY({raw}) {term.op} (s64){literal}"
    if term.op == "!=":
        nil = _NIL[Kind.FLOAT]
        return f"{raw} != {nil} && (IS_NAN({raw}) || {test})"
    return f"!IS_NAN({raw}) && {test}"
