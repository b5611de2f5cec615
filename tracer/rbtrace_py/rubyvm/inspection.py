"""Ruby values as text, read from outside: no method of the program is called.

An object is therefore shown by its class and address, not by its own ``inspect``. Texts
are bounded and safe to print.
"""

from __future__ import annotations

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.text import safe_text
from rbtrace_py.rubyvm.iseqs import Iseqs
from rbtrace_py.rubyvm.names import Names
from rbtrace_py.rubyvm.values import (
    T_ARRAY,
    T_CLASS,
    T_FLOAT,
    T_MODULE,
    T_STRING,
    T_SYMBOL,
    Values,
)

_FALSE, _TRUE = 0, 0x14
_STATIC_SYMBOL = 0x0C
_SYMBOL_TEXT = 24
"""``struct RSymbol.fstr`` (symbol.h): the name of a Symbol that is an object."""
_LONGEST_STRING = 100
"""Maximum bytes shown of a String."""
_MOST_ELEMENTS = 5
_DEEPEST = 2
"""Maximum nesting of arrays."""
LONGEST = 400
"""Maximum characters of a value."""


class Inspection:
    """Formats values. Raises NoSuchTarget once the process is gone."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._names = Names(values, Iseqs(values))

    def inspect(self, value: int) -> str:
        """Return a value's text, or ``?`` if it cannot be read."""
        try:
            text = self._inspect(value, 0)
        except UnreadableMemory:
            return "?"
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"

    def _inspect(self, value: int, depth: int) -> str:
        special = {_FALSE: "false", _TRUE: "true", self._values.traits.qnil: "nil"}
        if value in special:
            return special[value]
        number = self._values.number(value)
        if number is not None:
            return repr(number)
        if value & 0xFF == _STATIC_SYMBOL:
            return f":{self._values.id_name(value >> 8) or '?'}"
        kind = self._values.type_of(value)
        if kind is None:
            return "(unset)"  # Qundef
        return self._of_object(value, kind, depth)

    def _of_object(self, value: int, kind: int, depth: int) -> str:
        if kind == T_STRING:
            return self._string(value)
        if kind == T_SYMBOL:
            return f":{self._values.string(self._values.u64(value + _SYMBOL_TEXT))}"
        if kind in (T_CLASS, T_MODULE):
            return self._names.class_name(value)[0]
        if kind == T_ARRAY and depth < _DEEPEST:
            return self._array(value, depth)
        assert kind != T_FLOAT
        return f"#<{self._names.class_of(value)}:{value:#x}>"

    def _string(self, value: int) -> str:
        data = self._values.string_bytes(value, _LONGEST_STRING + 1) or b""
        mark = "…" if len(data) > _LONGEST_STRING else ""
        text = safe_text(data[:_LONGEST_STRING]).replace('"', '\\"')
        return f'"{text}"{mark}'

    def _array(self, value: int, depth: int) -> str:
        found = self._values.array(value)
        if found is None:
            return f"#<Array:{value:#x}>"
        address, length = found
        words = [
            self._inspect(self._values.u64(address + 8 * index), depth + 1)
            for index in range(min(length, _MOST_ELEMENTS))
        ]
        if length > _MOST_ELEMENTS:
            words.append(f"… {length} in all")
        return f"[{', '.join(words)}]"
