"""Arguments of Ruby's own probes, from CRuby's ``probes.d``.

Names of classes and methods, paths, and messages are C strings. A line is an int. A
length is a long, except at sites that pass a constant as an int. Sizes, counts,
addresses, and flags are integers, too.
"""

from __future__ import annotations

from rbtrace_py.model.probes import Operand, OperandType

PROVIDER = "ruby"

_STRINGS = frozenset(
    {"class", "method", "file", "required", "loaded", "symbol", "value", "instruction"}
)


def _operands(words: str) -> tuple[Operand, ...]:
    return tuple(map(_operand, words.split()))


def _operand(name: str) -> Operand:
    if name in _STRINGS:
        return Operand(name, OperandType.STRING)
    return Operand(name, OperandType.INTEGER, signed=True)


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
    # Since 4.1.
    "gc__enter": "event",
    "gc__exit": "event",
    "gc__mark_stacked_objects": "popped_count",
    "gc__sweep_page": "slot_size final_slots freed_slots empty_slots",
    "gc__obj_new": "obj flags",
    "gc__obj_free": "obj flags",
    "gc__xmalloc": "n size",
    "gc__xcalloc": "n size",
    "gc__xfree": "ptr size",
    "gvl__acquire": "",
    "gvl__release": "",
    "rts__set_running": "sched old_thread new_thread",
}

RUBY_PROBES = {name: _operands(words) for name, words in _TABLE.items()}
"""Operands by probe name. The operands of other probes are unknown."""


def is_ruby_binary(path: str) -> bool:
    """Return whether ``path`` may be a Ruby interpreter or its library."""
    return path.rpartition("/")[2].startswith(("ruby", "libruby"))
