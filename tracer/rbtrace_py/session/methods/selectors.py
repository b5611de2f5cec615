"""Selectors of methods: ``sleep``, ``String#gsub``, ``Process.pid``, ``Dir.``.

A selector may have expressions to evaluate: ``String#gsub(self, @text)``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from rbtrace_py.agent.arming import Selector
from rbtrace_py.errors import UsageError
from rbtrace_py.session.methods.expressions import BadExpressions, split_expressions
from rbtrace_py.session.methods.method_sets import METHOD_SETS

MOST = 1024
"""Maximum number of selectors that the agent accepts."""
_MAX_BYTES = 1024
_MAX_FILE = 1 << 20
_OWNER = r"[^\W\d]\w*(?:::[^\W\d]\w*)*"
_NAME = (
    r"[^\W\d]\w*[?!=]?"
    r"|\[\]=?|\*\*|<=>|===?|=~|![=~]?|<<|>>|<=|>=|[+\-~]@?|[*/%&|^<>`]"
)
_SELECTOR = re.compile(rf"(?:({_OWNER})([#.]))?({_NAME})?")
_COMMENT = re.compile(r"(^|\s)#.*")
_EXAMPLE = (
    "Write it as in 'String#gsub(self, @ivar, argument, self.attribute, __source__)'"
)
_FORMS = (
    "Write sleep (any method of that name), String#gsub, Process.pid, Kernel#"
    " (all instance methods) or Dir. (all class methods)"
)


def parse_selector(text: str, shows_values: bool = True) -> Selector:
    """Parse a selector.

    Args:
        text: The selector.
        shows_values: Accept expressions.

    Raises:
        UsageError: The selector is invalid.
    """
    word, bracket, _ = text.partition("(")
    if bracket and not shows_values:
        raise UsageError(
            f"{text!r} has expressions, which need single calls",
            f"Select only {word or 'the method'!r} here;"
            f" `rbtrace-py calls PID -m {shlex.quote(text)}` shows them",
        )
    selector = _methods(word, text)
    if not bracket:
        return selector
    return replace(selector, expressions=_expressions(text, len(word)))


def _expressions(text: str, at: int) -> tuple[str, ...]:
    try:
        found, end = split_expressions(text, at)
    except BadExpressions as error:
        raise UsageError(f"{text!r}: {error}", _EXAMPLE) from None
    if text[end:].strip():
        raise UsageError(f"{text!r}: unexpected {text[end:].strip()!r}", _EXAMPLE)
    return found


def _methods(word: str, text: str) -> Selector:
    found = _SELECTOR.fullmatch(word)
    if not word or not found or len(word.encode()) > _MAX_BYTES:
        hint = _FORMS
        if re.fullmatch(_OWNER, word) and "::" in word:
            hint = (
                f"Write {word}# for its instance methods, {word}. for its class methods"
            )
        raise UsageError(f"{text!r} does not select a method", hint)
    owner, mark, name = found.groups()
    kind = {"#": "instance", ".": "singleton", None: None}[mark]
    return Selector(owner, kind, name)


def selectors_of(
    words: Iterable[str], sets: Iterable[str], shows_values: bool = False
) -> list[Selector]:
    """Return the selectors of words, and of predefined sets or files of such words.

    Args:
        words: Selectors.
        sets: Names of predefined sets, or paths of files.
        shows_values: Accept expressions.

    Raises:
        UsageError: A selector is invalid, a file is unreadable, or there are too many.
    """
    found = [parse_selector(word, shows_values) for word in words]
    for name in sets:
        found += _of_set(name)
    unique = list(dict.fromkeys(found))
    if len(unique) > MOST:
        raise UsageError(f"{len(unique)} selectors are too many; the limit is {MOST}")
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
        raise UsageError(
            f"{name} does not select a method",
            "Write one selector per line; # starts a comment",
        )
    return found


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Yield selectors with their line numbers; `` #`` starts a comment."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(sorted(METHOD_SETS))
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(
            f"no set of methods named {path!r}, and no such file: {reason}",
            f"Use one of the sets: {names}",
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        word = _COMMENT.sub("", line).strip()
        if "(" in word:
            # Inside an expression, # does not start a comment.
            word = _word_of(line)
        if word:
            yield number, word


def _word_of(line: str) -> str:
    """Return the part of a line that is a (maybe invalid) selector with expressions."""
    try:
        end = split_expressions(line, line.index("("))[1]
    except BadExpressions:
        return line.strip()
    return (line[:end] + _COMMENT.sub("", line[end:])).strip()
