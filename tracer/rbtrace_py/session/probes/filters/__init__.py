"""The language of ``--filter``: ``id > 10 and sku == "abc"``.

A filter is parsed into a typed tree. ``ccode`` turns the tree into a C expression that
the kernel evaluates for each event. Reports of recordings evaluate the tree in Python,
so this package does not import ``ccode``, which needs ``bpf``.

An operand is compared with a constant by ``==  !=  <  <=  >  >=``, or, for strings, by
``^=`` (starts with). ``and``, ``or``, ``not``, and parentheses join comparisons. An
operand whose name ends in ``_ns`` is a time: ``duration > 15ms`` means the same as
``duration_ns > 15_000_000``. nil only equals ``nil``. Every other comparison with nil
is false, including ``!=``. As in Ruby, NaN does not equal any number.

The C expression contains text from users and targets only as numbers.
"""

from rbtrace_py.session.probes.filters.evaluation import evaluate
from rbtrace_py.session.probes.filters.lexer import MAX_STRING
from rbtrace_py.session.probes.filters.parser import (
    PSEUDO_OPERANDS,
    check_syntax,
    parse_filter,
    time_notes,
)
from rbtrace_py.session.probes.filters.tree import (
    And,
    Comparison,
    Filter,
    Kind,
    Not,
    Or,
)

__all__ = [
    "MAX_STRING",
    "PSEUDO_OPERANDS",
    "And",
    "Comparison",
    "Filter",
    "Kind",
    "Not",
    "Or",
    "check_syntax",
    "evaluate",
    "parse_filter",
    "time_notes",
]
