"""How strings, classes and symbols are laid out."""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.rubyvm.calibration.given import (
    Found,
    Given,
    View,
    failed,
    offset_where,
    sure,
)
from rbtrace_py.rubyvm.layout import ClassPath, StringStyle
from rbtrace_py.rubyvm.roots import is_pointer, read_array

T_STRING, T_ARRAY = 0x05, 0x07
_TYPE = 0x1F
_NOEMBED = 1 << 13
_CLASS = 512
_IDS = 512

_SHORT = b"rbtrace"
_LONG = _SHORT * 200


class Strings:
    """Knows by two strings how all are laid out."""

    def __init__(self, view: View, given: Given) -> None:
        self.view = view
        self.style = StringStyle.LENGTH_FIRST
        for style in (StringStyle.LENGTH_FIRST, StringStyle.LENGTH_IN_FLAGS):
            self.style = style
            short, long = given.values["text_short"], given.values["text_long"]
            if self.is_text(short, _SHORT) and self.is_text(long, _LONG):
                return
        raise failed("the form of strings was not found")

    def is_text(self, value: int, text: bytes) -> bool:
        """Is ``value`` a String of exactly that text?"""
        if not is_pointer(value):
            return False
        words = self.view.words(value, 5)
        if len(words) < 4 or words[0] & _TYPE != T_STRING:
            return False
        if words[0] & _NOEMBED:
            length, start = words[2], words[3]
        elif self.style is StringStyle.LENGTH_FIRST:
            length, start = words[2], value + 24
        else:
            length, start = words[0] >> 14 & 31, value + 16
        return length == len(text) and self.view.read(start, length) == text


@dataclass(frozen=True, slots=True)
class Classes:
    """Where a class has its name, and a singleton class its object."""

    style: ClassPath
    found: Found
    singleton_bit: int


class ClassSearch:
    """Finds the fields of classes."""

    def __init__(self, view: View, given: Given, strings: Strings) -> None:
        self.view = view
        self.strings = strings
        self.classes = [given.values["class_host"], given.values["class_inner"]]
        self.names = [b"RbtraceHost", b"RbtraceOuter::Inner"]
        self.singles = given.named("single_")
        self.singletons = given.named("singleton_")

    def run(self) -> Classes:
        """Find all; raises UnknownRuby."""
        return Classes(*self._paths(), self._bit())

    def _bit(self) -> int:
        """The flag that all singleton classes have and other classes have not."""
        flags = [self.view.word(value) for value in self.singletons]
        for bit in (12, 13):
            others = any(self.view.word(value) >> bit & 1 for value in self.classes)
            if all(flag >> bit & 1 for flag in flags) and not others:
                return bit
        raise failed("the flag of singleton classes was not found")

    def _paths(self) -> tuple[ClassPath, Found]:
        direct = offset_where(_CLASS, 8, self.classes, self._is_name)
        if direct is not None:
            attached = offset_where(
                _CLASS,
                8,
                self.singletons,
                lambda i, at: self.view.word(at) == self.singles[i],
            )
            variables = offset_where(_CLASS, 8, self.classes, self._is_variable)
            return ClassPath.EXTENSION, {
                "class_path": direct,
                "class_attached": sure(attached, "the object of a singleton class"),
                "class_first_ivar": sure(variables, "the variables of a class"),
            }
        first = offset_where(
            _CLASS, 8, self.classes, lambda i, at: self._is_name(i, self.view.word(at))
        )
        if first is not None:
            return ClassPath.FIRST_IVAR, {"class_first_ivar": first}
        for extension in range(16, 64, 8):
            places = [self.view.word(value + extension) for value in self.classes]
            table = offset_where(128, 8, places, self._has_name)
            if table is not None:
                found = {"class_ext": extension, "ext_ivars": table}
                return ClassPath.IVAR_TABLE, found
        raise failed("the names of classes were not found")

    def _is_name(self, i: int, at: int) -> bool:
        return self.strings.is_text(self.view.word(at), self.names[i])

    def _is_variable(self, i: int, at: int) -> bool:
        """The script gave each class one instance variable."""
        value = self.view.word(self.view.word(at))
        return self.strings.is_text(value, b"a variable of " + self.names[i])

    def _has_name(self, i: int, at: int) -> bool:
        """Is there a table (st_table) whose entries hold the name?"""
        for _, entries in self.view.pointers(self.view.word(at), 8):
            for value in self.view.words(entries, 24):
                if self.strings.is_text(value, self.names[i]):
                    return True
        return False


def find_symbols(
    view: View, given: Given, strings: Strings, table: int
) -> tuple[Found, int]:
    """Where the table of symbols has its arrays, and ID_SCOPE_SHIFT."""
    wanted = {
        given.values["symbol_" + name] >> 8: name.encode()
        for name in ("recurse", "original", "in_module", "aliased")
    }
    for offset in range(8, 64, 8):
        units = read_array(view.memory, view.word(table + offset), 1 << 16)
        for shift in (3, 4, 5):
            if units and all(
                strings.is_text(_symbol(view, units, number >> shift), name)
                for number, name in wanted.items()
            ):
                return {
                    "symbols_ids": offset,
                    "symbols_last_id": _last_id(view, table, max(wanted) >> shift),
                }, shift
    raise failed("the table of symbols was not found")


def _last_id(view: View, table: int, known: int) -> int:
    """Where the last serial number is, which is not below one that is known."""
    last = offset_where(16, 4, [table], lambda _, at: known <= view.u32(at) < 1 << 28)
    return sure(last, "the number of symbols")


def _symbol(view: View, units: list[int], serial: int) -> int:
    """The string of a serial number."""
    if serial // _IDS >= len(units):
        return 0
    unit = read_array(view.memory, units[serial // _IDS], 2 * _IDS)
    place = 2 * (serial % _IDS)
    return unit[place] if place < len(unit) else 0
