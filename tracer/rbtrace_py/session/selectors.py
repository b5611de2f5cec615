"""Words that choose methods: ``sleep``, ``String#gsub``, ``Process.pid``, ``Dir.``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from rbtrace_py.agent.arming import Selector
from rbtrace_py.errors import UsageError
from rbtrace_py.session.method_sets import METHOD_SETS

MOST = 1024
"""Selectors that the agent takes."""
_MAX_BYTES = 1024
_MAX_FILE = 1 << 20
_OWNER = r"[^\W\d]\w*(?:::[^\W\d]\w*)*"
_NAME = (
    r"[^\W\d]\w*[?!=]?"
    r"|\[\]=?|\*\*|<=>|===?|=~|![=~]?|<<|>>|<=|>=|[+\-~]@?|[*/%&|^<>`]"
)
_SELECTOR = re.compile(rf"(?:({_OWNER})([#.]))?({_NAME})?")
_FORMS = (
    "write sleep (any method of that name), String#gsub, Process.pid,"
    " Kernel# (all instance methods) or Dir. (all class methods)"
)


def parse_selector(word: str) -> Selector:
    """What a word selects; raises UsageError."""
    if "(" in word:
        raise UsageError(
            f"{word!r} asks for the value of an expression, which cannot be had",
            "what is seen is which method is called and when, not its arguments or"
            f" self; select {word.partition('(')[0] or 'the method'!r} alone",
        )
    found = _SELECTOR.fullmatch(word)
    if not word or not found or len(word.encode()) > _MAX_BYTES:
        hint = _FORMS
        if re.fullmatch(_OWNER, word) and "::" in word:
            hint = f"{word}# selects its instance methods, {word}. its class methods"
        raise UsageError(f"{word!r} selects no method", hint)
    owner, mark, name = found.groups()
    kind = {"#": "instance", ".": "singleton", None: None}[mark]
    return Selector(owner, kind, name)


def selectors_of(words: Iterable[str], sets: Iterable[str]) -> list[Selector]:
    """Of words, and of predefined sets or files of such words.

    Raises UsageError.
    """
    found = [parse_selector(word) for word in words]
    for name in sets:
        found += _of_set(name)
    unique = list(dict.fromkeys(found))
    if len(unique) > MOST:
        raise UsageError(f"{len(unique)} selectors are too many; at most {MOST}")
    return unique


def _of_set(name: str) -> list[Selector]:
    if name in METHOD_SETS:
        return [parse_selector(word) for word in METHOD_SETS[name]]
    found = []
    for number, word in _lines(name):
        try:
            found.append(parse_selector(word))
        except UsageError as error:
            raise UsageError(f"{name}, line {number}: {error}", error.hint) from None
    if not found:
        raise UsageError(f"{name} selects no method", "a selector a line; # comments")
    return found


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Its selectors with their line numbers; ``#`` begins a comment after a space."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(sorted(METHOD_SETS))
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(
            f"no set of methods {path!r}, nor a file: {reason}", f"sets: {names}"
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        word = re.sub(r"(^|\s)#.*", "", line).strip()
        if word:
            yield number, word
