"""The tokens of a filter: names, numbers, strings, and operators."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from rbtrace_py.errors import FilterError
from rbtrace_py.session.probes.filters.tree import Constant

MAX_STRING = 63
"""Maximum length of a string constant in bytes, without a NUL."""


class Word(Enum):
    NAME = "a name"
    NUMBER = "a number"
    STRING = "a string"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a filter.

    Attributes:
        text: The canonical spelling.
        position: Offset in the filter, in characters.
        value: Value of a literal.
        is_time: True for a number with a unit, or a name written without its ``_ns``.
    """

    word: Word
    text: str
    position: int
    value: Constant = None
    is_time: bool = False


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:0[xX][0-9a-zA-Z_]+
                   |(?:[0-9][0-9_]*(?:\.[0-9][0-9_]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
                 [^\W\d]*\w*)
    | (?P<name>[^\W\d]\w*)
    | (?P<symbol>:[^\W\d]\w*[?!]?)
    | (?P<string>(?P<quote>["'])(?P<body>(?:\\.|(?!(?P=quote)).)*)(?P<closing>["']?))
    | (?P<sign>==|!=|<=|>=|\^=|=~|!~|&&|\|\||[<>()!=])
    | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(
    r"(-?)(?:0[xX](?P<hex>[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*)"
    r"|(?P<whole>[0-9]+(?:_[0-9]+)*)?(?P<part>\.[0-9]+(?:_[0-9]+)*)?"
    r"(?P<power>[eE][+-]?[0-9]{1,4})?(?P<unit>ns|us|µs|μs|ms|s)?)\Z"
)
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_ESCAPE = re.compile(
    r"\\(?:x(?P<byte>[0-9a-fA-F]{2})|u(?P<code>[0-9a-fA-F]{4})"
    r"|u\{(?P<long>[0-9a-fA-F]{1,6})\}|(?P<plain>[\\'\"abefnrtv])|)"
)
_PLAIN = dict(zip("\\'\"abefnrtv", "\\'\"\a\b\x1b\f\n\r\t\v", strict=True))
_SPELLINGS = {"&&": "and", "||": "or", "!": "not"}


class Lexer:
    """Splits a filter into tokens."""

    def __init__(self, text: str) -> None:
        self._text = text

    def fail(self, message: str, position: int) -> FilterError:
        return FilterError(message, self._text, position)

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        place = 0
        while not found or found[-1].word is not Word.END:
            match = _TOKEN.match(self._text, place)
            if match is None:
                rest = self._text[place:]
                place += len(rest) - len(rest.lstrip())
                message = f"unexpected {self._text[place]!a}"
                raise self.fail(message, place)
            found.append(self._token(match))
            place = match.end()
        return found

    def _token(self, match: re.Match[str]) -> Token:
        group = match.lastgroup or ""
        text, start = match[group], match.start(group)
        if group == "number":
            return self._number(text, start)
        if group == "symbol":
            return Token(Word.STRING, text, start, self._bounded(text[1:], start))
        if group == "string":
            value = self._bounded(self._unescaped(match), start)
            return Token(Word.STRING, text, start, value)
        if group == "name":
            return Token(Word.NAME, text, start)
        if group == "end":
            return Token(Word.END, "", len(self._text))
        return self._sign(text, start)

    def _sign(self, text: str, start: int) -> Token:
        if text == "=":
            raise self.fail("use '==' for equality, not '='", start)
        if text in ("=~", "!~"):
            message = "regular expressions are not supported; '^=' compares a prefix"
            raise self.fail(message, start)
        if text in _SPELLINGS:
            return Token(Word.NAME, _SPELLINGS[text], start)
        return Token(Word.SIGN, text, start)

    def _number(self, text: str, start: int) -> Token:
        match = _NUMBER.match(text)
        if match is None:
            message = "not a number (times end in ns, us, ms or s)"
            raise self.fail(message, start)
        sign = -1 if match[1] else 1
        if match["hex"]:
            return Token(Word.NUMBER, text, start, sign * int(match["hex"], 16))
        digits = (match["whole"] or "0") + (match["part"] or "")
        digits = digits.replace("_", "") + (match["power"] or "")
        if match["unit"]:
            time = self._time(sign * _fraction(digits) * _UNITS[match["unit"]], start)
            return Token(Word.NUMBER, text, start, time, is_time=True)
        if match["part"] or match["power"]:
            number = self._finite(sign * float(digits), start)
            return Token(Word.NUMBER, text, start, number)
        return Token(Word.NUMBER, text, start, sign * int(digits))

    def _finite(self, number: float, start: int) -> float:
        if number in (float("inf"), float("-inf")):
            raise self.fail("a number too large for a Float", start)
        return number

    def _time(self, time: Fraction, start: int) -> int:
        if time.denominator != 1:
            raise self.fail("not a whole number of nanoseconds", start)
        return time.numerator

    def _unescaped(self, string: re.Match[str]) -> str:
        def character(escape: re.Match[str]) -> str:
            place = string.start("body") + escape.start()
            if escape["plain"]:
                return _PLAIN[escape["plain"]]
            if escape["byte"]:
                return bytes.fromhex(escape["byte"]).decode("utf-8", "surrogateescape")
            digits = escape["code"] or escape["long"]
            if not digits:
                raise self.fail("unknown escape sequence", place)
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise self.fail("no such character", place)
            return chr(code)

        found = _ESCAPE.sub(character, string["body"])
        if not string["closing"]:
            message = f"a string without its closing {string['quote']}"
            raise self.fail(message, string.start("quote"))
        return found

    def _bounded(self, text: str, start: int) -> bytes:
        data = text.encode("utf-8", "surrogateescape")
        if 0 in data:
            raise self.fail("strings of probes cannot contain NUL", start)
        if len(data) > MAX_STRING:
            message = f"strings are compared up to {MAX_STRING} bytes"
            raise self.fail(f"{message}, this one has {len(data)}", start)
        return data


def _fraction(digits: str) -> Fraction:
    """Return the exact number; clamp exponents that are out of range for times."""
    mantissa, _, power = digits.lower().partition("e")
    exponent = max(-40, min(int(power or 0), 40))
    return Fraction(mantissa) * Fraction(10) ** exponent
