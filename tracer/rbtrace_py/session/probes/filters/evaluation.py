"""Evaluation of a filter in Python, for events that do not come from the kernel.

The C expression in the kernel must agree with it; tests compare both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from rbtrace_py.model.events import Unreadable, Value
from rbtrace_py.session.probes.filters.tree import And, Comparison, Filter, Not, Or

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(tree: Filter, values: Mapping[str, Value]) -> bool:
    """Return whether an event passes the filter.

    Args:
        tree: The filter.
        values: Values of all operands that the filter names.
    """
    if isinstance(tree, And):
        return all(evaluate(term, values) for term in tree.terms)
    if isinstance(tree, Or):
        return any(evaluate(term, values) for term in tree.terms)
    if isinstance(tree, Not):
        return not evaluate(tree.term, values)
    return _compare(tree, values[tree.operand])


def _compare(term: Comparison, value: Value) -> bool:
    if term.constant is None:
        return (value is None) == (term.op == "==")
    if value is None:
        return False
    if isinstance(value, Unreadable):
        return term.op == "!="
    if isinstance(value, str):
        return _compare_text(term, value.encode("utf-8", "surrogateescape"))
    return _ORDER[term.op](value, term.constant)


def _compare_text(term: Comparison, value: bytes) -> bool:
    if term.op == "^=":
        assert isinstance(term.constant, bytes)
        return value.startswith(term.constant)
    return _ORDER[term.op](value, term.constant)
