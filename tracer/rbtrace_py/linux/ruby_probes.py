"""Arguments of the probes Ruby itself has, from CRuby's ``probes.d``.

A class's or method's name, a path and a message are C strings; a line is an
int; a length is a long, but sites that pass a constant pass it as an int.
"""

from __future__ import annotations

from rbtrace_py.model.probes import Operand, OperandType

PROVIDER = "ruby"

_INTEGERS = frozenset({"line", "length"})


def _operands(words: str) -> tuple[Operand, ...]:
    return tuple(map(_operand, words.split()))


def _operand(name: str) -> Operand:
    if name in _INTEGERS:
        return Operand(name, OperandType.INTEGER, signed=True)
    return Operand(name, OperandType.STRING)


_TABLE = {
    "method__entry": "class method file line",
    "method__return": "class method file line",
    "cmethod__entry": "class method file line",
    "cmethod__return": "class method file line",
    "require__entry": "required file line",
    "require__return": "required file line",
    "find__require__entry": "required file line",
    "find__require__return": "required file line",
    "load__entry": "loaded file line",
    "load__return": "loaded file line",
    "raise": "class file line",
    "object__create": "class file line",
    "array__create": "length file line",
    "hash__create": "length file line",
    "string__create": "length file line",
    "symbol__create": "symbol file line",
    "parse__begin": "file line",
    "parse__end": "file line",
    "method__cache__clear": "class file line",
    "insn": "instruction",
    "insn__operand": "value instruction",
    "gc__mark__begin": "",
    "gc__mark__end": "",
    "gc__sweep__begin": "",
    "gc__sweep__end": "",
    "gc__enter": "",
    "gc__exit": "",
    "gvl__acquire": "",
    "gvl__release": "",
}

RUBY_PROBES = {name: _operands(words) for name, words in _TABLE.items()}
"""Operands by probe name; a probe that is not here has none that are known."""


def is_ruby_binary(path: str) -> bool:
    """Could the file at ``path`` be an interpreter or its library?"""
    return path.rpartition("/")[2].startswith(("ruby", "libruby"))
