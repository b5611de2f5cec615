"""Safe display of untrusted text: escape, quote, measure, cut.

Texts come from targets. They must not move the cursor, change colors, reorder text
beside them, or take more columns than were counted.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rbtrace_py.report.style import Style

if TYPE_CHECKING:
    from rbtrace_py.aggregate.results import Group

_NAMED = {
    "\a": r"\a",
    "\b": r"\b",
    "\t": r"\t",
    "\n": r"\n",
    "\v": r"\v",
    "\f": r"\f",
    "\r": r"\r",
    "\x1b": r"\e",
    "\\": r"\\",
}
_MARKS = ("Mn", "Me", "Mc")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_MAX_MARKS = 2
_PLAIN_SYMBOL = re.compile(r"[^\W\d]\w*[?!=]?\Z", re.ASCII)
_AMBIGUOUS = frozenset({"", "nil", "true", "false", "(other)"})


def escape(text: str, style: Style) -> str:
    """Return ``text`` with special and unprintable characters escaped as in Ruby."""
    return "".join(_pieces(text, style))


def inspect(text: str, style: Style, truncated: bool = False) -> str:
    """Write bytes as Ruby's ``String#inspect``; a truncated text ends with ``…``."""
    inner = "".join(_quoted(text, style))
    return f'"{inner}"{ellipsis(style) if truncated else ""}'


def inspected(text: str, style: Style) -> str:
    """Escape the result of a target's own ``inspect``; its backslashes stay."""
    if text.endswith("…"):
        return inspected(text[:-1], style) + ellipsis(style)
    return "\\".join(escape(part, style) for part in text.split("\\"))


def inspect_symbol(text: str, style: Style, truncated: bool = False) -> str:
    """Write a name as Ruby's ``Symbol#inspect``."""
    if _PLAIN_SYMBOL.match(text) and not truncated:
        return f":{text}"
    return f":{inspect(text, style, truncated)}"


def label(text: str, style: Style) -> str:
    """Return ``text`` without quotes, unless that would be ambiguous."""
    if text in _AMBIGUOUS or text != text.strip():
        return inspect(text, style)
    return escape(text, style)


def key_label(group: Group, style: Style) -> str:
    """Return the key of a row of a ``--by`` table."""
    if group.is_other:
        return "(other)"
    key = group.key
    if group.key_name is not None:
        return group.key_name
    if isinstance(key, str):
        return label(key, style) + (ellipsis(style) if group.truncated else "")
    return scalar(key)


def scalar(value: int | float | bool | None) -> str:
    """Write a value as Ruby's ``inspect`` does."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return repr(value)


def ellipsis(style: Style) -> str:
    return style.pick("…", "...")


def width(text: str) -> int:
    """Return the number of columns of an escaped text."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def cut(text: str, columns: int, style: Style) -> str:
    """Cut an escaped text to at most ``columns`` columns, including a mark (``…``)."""
    if width(text) <= columns:
        return text
    mark = ellipsis(style)
    return (_head(text, columns - len(mark)) + mark)[: max(columns, 0)]


def _head(text: str, columns: int) -> str:
    """Return the beginning of an escaped text that fits into ``columns`` columns."""
    for place, character in enumerate(text):
        columns -= _columns(character)
        if columns < 0:
            return text[:place]
    return text


def lines_of(text: str, columns: int) -> Iterator[str]:
    """Yield an escaped text in lines of at most ``columns`` columns, at least 2.

    Lines are broken after a space if possible.
    """
    while width(text) > columns:
        head = _head(text, columns)
        place = head.rfind(" ") + 1 or len(head)
        yield text[:place]
        text = text[place:]
    yield text


def fitted(text: str, columns: int, style: Style) -> str:
    """Cut a text to the width of a terminal; elsewhere return it uncut."""
    return text if style.is_whole else cut(text, columns, style)


def cut_left(text: str, columns: int, style: Style) -> str:
    """Return the end of an escaped text: of a path, the most informative part."""
    if width(text) <= columns:
        return text
    mark = ellipsis(style)
    place = len(text)
    room = columns - len(mark)
    while place and width(text[place - 1]) <= room:
        place -= 1
        room -= width(text[place])
    return mark + text[place:]


def wrap(text: str, room: int) -> Iterator[str]:
    """Yield lines of words; a word longer than a line is not broken."""
    line = ""
    for word in text.split():
        if line and width(line) + 1 + width(word) > room:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        yield line


def listed(parts: Iterable[str], room: int, style: Style) -> Iterator[str]:
    """Yield lines of ``a, b, c``; on a terminal, lines are broken between the parts."""
    line = ""
    for part in parts:
        longer = f"{line}, {part}" if line else part
        if line and not style.is_whole and width(longer) >= room:
            yield f"{line},"
            longer = part
        line = longer
    if line:
        yield line


def pad(text: str, columns: int) -> str:
    """Append spaces to ``text`` up to a width of ``columns``."""
    return text + " " * (columns - width(text))


def pad_left(text: str, columns: int) -> str:
    """Prepend spaces to ``text`` up to a width of ``columns``."""
    return " " * (columns - width(text)) + text


def replace_undecodable(text: str) -> str:
    """Replace each sequence that was not UTF-8 by U+FFFD."""
    if text.isascii():
        return text
    data = text.encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "replace")


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _pieces(text: str, style: Style) -> Iterator[str]:
    marks = _MAX_MARKS
    for character in text:
        is_mark = not character.isascii() and unicodedata.category(character) in _MARKS
        marks = marks + 1 if is_mark else 0
        if is_mark and marks <= _MAX_MARKS and not style.ascii:
            yield character
        else:
            yield _spell(character, is_mark or style.ascii)


def _quoted(text: str, style: Style) -> Iterator[str]:
    previous = ""
    for piece in _pieces(text, style):
        opens = previous == "#" and piece in ("{", "$", "@")
        if previous:
            yield "\\#" if opens else previous
        previous = '\\"' if piece == '"' else piece
    yield previous


def _spell(character: str, only_ascii: bool) -> str:
    named = _NAMED.get(character)
    if named:
        return named
    code = ord(character)
    if character.isascii():
        return character if 0x20 <= code < 0x7F else f"\\x{code:02X}"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02X}"
    if only_ascii or unicodedata.category(character) in _HIDDEN:
        return f"\\u{{{code:X}}}"
    return character
