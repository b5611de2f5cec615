"""Splits a list of Ruby expressions in parentheses at its own commas.

This module only considers brackets and quotes. Ruby itself checks the expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

MOST = 16
MAX_BYTES = 1024
"""The agent's limits: expressions per selector, and bytes per expression."""
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_QUOTES = "\"'`"
_LITERALS = (*_QUOTES, "/")
_BEFORE_REGEXP = re.compile(r"(?:^|[(\[{,=~!|&?:;<>+*-])\s*\Z")
"""Text before a slash that starts a regular expression, not a division."""


class BadExpressions(ValueError):
    """The reason why a string is not a list of expressions."""


def split_expressions(text: str, start: int = 0) -> tuple[tuple[str, ...], int]:
    """Split a list of expressions.

    Args:
        text: A string with the list.
        start: Offset of the list's ``(``.

    Returns:
        The expressions without duplicates, and the offset after the list.

    Raises:
        BadExpressions: The list is invalid.
    """
    *commas, end = _borders(text, start)
    places = [start, *commas, end]
    found = [text[before + 1 : at].strip() for before, at in pairwise(places)]
    if not all(found):
        raise BadExpressions("an expression is missing")
    if len(found) > MOST:
        raise BadExpressions(f"more than {MOST} expressions")
    for each in found:
        if len(each.encode("utf-8", "replace")) > MAX_BYTES:
            raise BadExpressions(f"an expression is longer than {MAX_BYTES} bytes")
    return tuple(dict.fromkeys(found)), end + 1


def _borders(text: str, start: int) -> Iterator[int]:
    """Yield the offsets of the outermost commas and of the closing bracket."""
    open_: list[str] = []
    at = start
    while at < len(text):
        step, is_border = _step(text, at, start, open_)
        if is_border:
            yield at
        if not open_:
            return
        at += step
    closer = "a quote" if open_[-1] in _LITERALS else repr(open_[-1])
    raise BadExpressions(f"{closer} is missing at its end")


def _step(text: str, at: int, start: int, open_: list[str]) -> tuple[int, bool]:
    """Process a character; return the number to advance, and whether it is a border.

    ``open_`` has the closers of the open brackets and quotes, the innermost last.
    """
    character = text[at]
    inner = open_[-1] if open_ else ""
    if inner and inner in _LITERALS:
        return _quoted(text, at, open_), False
    if character in _QUOTES or (
        character == "/" and _BEFORE_REGEXP.search(text, start, at)
    ):
        open_.append(character)
    elif character in _CLOSERS:
        open_.append(_CLOSERS[character])
    elif character in _CLOSERS.values():
        if character != inner:
            raise BadExpressions(f"unmatched {character!r}")
        open_.pop()
        return 1, not open_
    return 1, character == "," and len(open_) == 1


def _quoted(text: str, at: int, open_: list[str]) -> int:
    """Process a character in quotes; return the number to advance."""
    quote = open_[-1]
    if text[at] == "\\":
        return 2
    if text[at] == quote:
        open_.pop()
    elif quote != "'" and text.startswith("#{", at):
        open_.append("}")
        return 2
    return 1
