"""The language of ``--filter``: ``id > 10 and sku == "abc"``.

A filter is read into a typed tree, and the tree becomes either a C expression
that the kernel evaluates for each event, or an answer in Python (``evaluate``),
which says what the C expression means.

An operand is compared with a constant; ``==  !=  <  <=  >  >=`` and, for texts,
``^=`` (begins with). ``and``, ``or``, ``not`` and parentheses join comparisons.
nil is equal to ``nil`` and to nothing else, and every other comparison with it
is false, ``!=`` too. NaN is as in Ruby: unequal to everything.

Nothing a user wrote, and nothing a target holds, gets into the C expression
but as a number.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

from rbtrace_py.aggregate.events import Unreadable, Value
from rbtrace_py.aggregate.histogram import float_bits
from rbtrace_py.errors import FilterError
from rbtrace_py.model import (
    NIL_BOOL,
    NIL_FLOAT_BITS,
    NIL_INTEGER,
    Operand,
    OperandType,
)

MAX_TEXT = 4000
MAX_DEPTH = 32
MAX_COMPARISONS = 64
MAX_STRING = 63
"""Bytes of a string constant, without a NUL."""

PSEUDO_OPERANDS = ("pid", "tid")
"""What every event has; an operand of the same name goes before them."""

Constant = int | float | bool | bytes | None


class Kind(Enum):
    """How an operand's 8 raw bytes are compared."""

    SIGNED = "an Integer"
    FLOAT = "a Float"
    BOOL = "true or false"
    TEXT = "a text"
    RAW_SIGNED = "a number"
    RAW_UNSIGNED = "an unsigned number"

    @property
    def has_nil(self) -> bool:
        return self not in (Kind.RAW_SIGNED, Kind.RAW_UNSIGNED)

    @property
    def is_integer(self) -> bool:
        return self in (Kind.SIGNED, Kind.RAW_SIGNED, Kind.RAW_UNSIGNED)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``operand op constant``; a constant of None is nil."""

    operand: str
    kind: Kind
    op: str
    constant: Constant


@dataclass(frozen=True, slots=True)
class Not:
    term: Filter


@dataclass(frozen=True, slots=True)
class And:
    terms: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple[Filter, ...]


Filter = Comparison | Not | And | Or


@dataclass(frozen=True, slots=True)
class CompiledFilter:
    """A filter for the kernel.

    expression: C, over these macros and nothing else:
        ``SLOT(i)`` the raw u64 of operand number i
        ``FKEY(x)`` the s64 ``float_order(x)`` of a double's bits
        ``IS_NAN(x)`` whether a double's bits are those of a NaN
        ``STREQ(i, k)`` the text at SLOT(i) is string number k, to its end
        ``STRPREFIX(i, k)`` the text at SLOT(i) begins with string number k
    operands: names in the order of slots; a name the probe has no operand of
        is one of ``PSEUDO_OPERANDS``
    strings: constants without their NUL, in the order of their numbers
    """

    expression: str
    operands: tuple[str, ...]
    strings: tuple[bytes, ...]


def float_order(bits: int) -> int:
    """An s64 whose order is that of doubles; both zeros give 0.

    In C: ``(s64)x < 0 ? -(s64)(x & 0x7fffffffffffffffULL) : (s64)x``.
    """
    magnitude = bits & 0x7FFFFFFFFFFFFFFF
    return -magnitude if bits >> 63 else magnitude


def parse_filter(text: str, operands: Mapping[str, OperandType | Operand]) -> Filter:
    """The typed tree of ``text``; raises FilterError.

    operands: what may be named, beside ``PSEUDO_OPERANDS``. For an operand of
    unknown type an ``Operand`` says if it is signed; a bare type does not.
    """
    if len(text) > MAX_TEXT:
        raise FilterError(f"a filter has at most {MAX_TEXT} characters", text, MAX_TEXT)
    kinds = dict.fromkeys(PSEUDO_OPERANDS, Kind.RAW_UNSIGNED)
    kinds.update((name, _kind_of(operand)) for name, operand in operands.items())
    return _Parser(text, kinds).parse()


def compile_filter(tree: Filter) -> CompiledFilter:
    """The C expression of ``tree``."""
    writer = _Writer()
    expression = writer.write(tree)
    return CompiledFilter(expression, tuple(writer.operands), tuple(writer.strings))


def evaluate(tree: Filter, values: Mapping[str, Value]) -> bool:
    """Does an event with these values pass? ``values`` has all operands named."""
    if isinstance(tree, And):
        return all(evaluate(term, values) for term in tree.terms)
    if isinstance(tree, Or):
        return any(evaluate(term, values) for term in tree.terms)
    if isinstance(tree, Not):
        return not evaluate(tree.term, values)
    return _compare(tree, values[tree.operand])


def operand_names(tree: Filter) -> tuple[str, ...]:
    """Every operand a filter looks at, once, in the order of slots."""
    return compile_filter(tree).operands


def _kind_of(operand: OperandType | Operand) -> Kind:
    kind = operand.type if isinstance(operand, Operand) else operand
    if kind == OperandType.UNKNOWN:
        signed = isinstance(operand, Operand) and operand.signed
        return Kind.RAW_SIGNED if signed else Kind.RAW_UNSIGNED
    return {
        OperandType.INTEGER: Kind.SIGNED,
        OperandType.FLOAT: Kind.FLOAT,
        OperandType.BOOL: Kind.BOOL,
    }.get(kind, Kind.TEXT)


# Meaning


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(term: Comparison, value: Value) -> bool:
    if term.constant is None:
        return (value is None) == (term.op == "==")
    if value is None:
        return False
    if isinstance(value, Unreadable):
        return term.op == "!="
    if isinstance(value, str):
        return _compare_text(term, value.encode("utf-8", "surrogateescape"))
    return _ORDER[term.op](value, term.constant)


def _compare_text(term: Comparison, value: bytes) -> bool:
    if term.op == "^=":
        assert isinstance(term.constant, bytes)
        return value.startswith(term.constant)
    return _ORDER[term.op](value, term.constant)


# C


def _unsigned(number: int) -> str:
    return f"0x{number & 0xFFFFFFFFFFFFFFFF:x}ULL"


_NIL = {
    Kind.SIGNED: _unsigned(NIL_INTEGER),
    Kind.FLOAT: _unsigned(NIL_FLOAT_BITS),
    Kind.BOOL: _unsigned(NIL_BOOL),
    Kind.TEXT: _unsigned(0),
}


class _Writer:
    """Writes a tree as C, numbering operands and strings as they come."""

    def __init__(self) -> None:
        self.operands: list[str] = []
        self.strings: list[bytes] = []

    def write(self, tree: Filter) -> str:
        if isinstance(tree, And):
            return f"({' && '.join(map(self.write, tree.terms))})"
        if isinstance(tree, Or):
            return f"({' || '.join(map(self.write, tree.terms))})"
        if isinstance(tree, Not):
            return f"!{self.write(tree.term)}"
        return f"({self._comparison(tree)})"

    def _comparison(self, term: Comparison) -> str:
        slot = _number(self.operands, term.operand)
        raw = f"SLOT({slot})"
        if term.constant is None:
            return f"{raw} {term.op} {_NIL[term.kind]}"
        if term.kind is Kind.FLOAT:
            return _float_comparison(raw, term)
        if term.kind is Kind.TEXT:
            test = self._text_comparison(slot, term)
        else:
            test = _integer_comparison(raw, term)
        return f"{raw} != {_NIL[term.kind]} && {test}" if term.kind.has_nil else test

    def _text_comparison(self, slot: int, term: Comparison) -> str:
        assert isinstance(term.constant, bytes)
        string = _number(self.strings, term.constant)
        if term.op == "^=":
            return f"STRPREFIX({slot}, {string})"
        return f"{'!' if term.op == '!=' else ''}STREQ({slot}, {string})"


def _number(known: list[str] | list[bytes], item: str | bytes) -> int:
    if item not in known:
        known.append(item)  # type: ignore[arg-type]
    return known.index(item)  # type: ignore[arg-type]


def _integer_comparison(raw: str, term: Comparison) -> str:
    assert isinstance(term.constant, int)
    literal = _unsigned(term.constant)
    if term.kind is Kind.RAW_UNSIGNED:
        return f"{raw} {term.op} {literal}"
    return f"(s64){raw} {term.op} (s64){literal}"


def _float_comparison(raw: str, term: Comparison) -> str:
    assert isinstance(term.constant, float)
    literal = _unsigned(float_order(float_bits(term.constant)))
    test = f"FKEY({raw}) {term.op} (s64){literal}"
    if term.op == "!=":
        nil = _NIL[Kind.FLOAT]
        return f"{raw} != {nil} && (IS_NAN({raw}) || {test})"
    return f"!IS_NAN({raw}) && {test}"


# Words


class _Word(Enum):
    NAME = "a name"
    NUMBER = "a number"
    STRING = "a string"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class _Token:
    """``text`` is the canonical spelling of a sign; ``value`` what a literal is."""

    word: _Word
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
    | (?P<string>["'])
    | (?P<sign>==|!=|<=|>=|\^=|=~|!~|&&|\|\||[<>()!=])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_NUMBER = re.compile(
    r"(-?)(?:0[xX](?P<hex>[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*)"
    r"|(?P<whole>[0-9]+(?:_[0-9]+)*)?(?P<part>\.[0-9]+(?:_[0-9]+)*)?"
    r"(?P<power>[eE][+-]?[0-9]{1,4})?(?P<unit>ns|us|µs|μs|ms|s)?)\Z"
)
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_ESCAPE = re.compile(
    r"\\(?:x(?P<byte>[0-9a-fA-F]{2})|u(?P<code>[0-9a-fA-F]{4})"
    r"|u\{(?P<long>[0-9a-fA-F]{1,6})\}|(?P<plain>[\\'\"abefnrtv]))"
)
_PLAIN = dict(zip("\\'\"abefnrtv", b"\\'\"\a\b\x1b\f\n\r\t\v", strict=True))
_SPELLINGS = {"&&": "and", "||": "or", "!": "not"}
_WORDS = ("and", "or", "not", "true", "false", "nil")
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "^=")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class _Lexer:
    """Cuts a text into tokens."""

    def __init__(self, text: str) -> None:
        self._text = text

    def fail(self, message: str, position: int) -> FilterError:
        return FilterError(message, self._text, position)

    def tokens(self) -> list[_Token]:
        found: list[_Token] = []
        place = 0
        while not found or found[-1].word is not _Word.END:
            match = _TOKEN.match(self._text, place)
            if match is None:
                raise self._stray(place)
            token, place = self._token(match)
            found.append(token)
        return found

    def _stray(self, place: int) -> FilterError:
        rest = self._text[place:]
        place += len(rest) - len(rest.lstrip())
        return self.fail(f"{self._text[place]!a} has no meaning here", place)

    def _token(self, match: re.Match[str]) -> tuple[_Token, int]:
        group = match.lastgroup or ""
        text, start = match[group], match.start(group)
        if group == "number":
            return self._number(text, start), match.end()
        if group == "symbol":
            data = self._bounded(_encode(text[1:]), start)
            return _Token(_Word.STRING, text, start, data), match.end()
        if group == "string":
            return self._string(text, start)
        if group == "name":
            return _Token(_Word.NAME, text, start), match.end()
        if group == "end":
            return _Token(_Word.END, "", len(self._text)), match.end()
        return self._sign(text, start), match.end()

    def _sign(self, text: str, start: int) -> _Token:
        if text == "=":
            raise self.fail("'=' alone has no meaning; equality is '=='", start)
        if text in ("=~", "!~"):
            message = "there are no regular expressions; '^=' compares a beginning"
            raise self.fail(message, start)
        if text in _SPELLINGS:
            return _Token(_Word.NAME, _SPELLINGS[text], start)
        return _Token(_Word.SIGN, text, start)

    def _number(self, text: str, start: int) -> _Token:
        match = _NUMBER.match(text)
        if match is None:
            message = "not a number (times end in ns, us, ms or s)"
            raise self.fail(message, start)
        sign = -1 if match[1] else 1
        if match["hex"]:
            return _Token(_Word.NUMBER, text, start, sign * int(match["hex"], 16))
        digits = (match["whole"] or "0") + (match["part"] or "")
        digits = digits.replace("_", "") + (match["power"] or "")
        if match["unit"]:
            time = self._time(sign * _fraction(digits) * _UNITS[match["unit"]], start)
            return _Token(_Word.NUMBER, text, start, time, is_time=True)
        if match["part"] or match["power"]:
            number = self._finite(sign * float(digits), start)
            return _Token(_Word.NUMBER, text, start, number)
        return _Token(_Word.NUMBER, text, start, sign * int(digits))

    def _finite(self, number: float, start: int) -> float:
        if number in (float("inf"), float("-inf")):
            raise self.fail("a number too large for a Float", start)
        return number

    def _time(self, time: Fraction, start: int) -> int:
        if time.denominator != 1:
            raise self.fail("not a whole number of nanoseconds", start)
        return time.numerator

    def _string(self, quote: str, start: int) -> tuple[_Token, int]:
        place = start + 1
        data = bytearray()
        while True:
            if place >= len(self._text):
                raise self.fail(f"a string without its closing {quote}", start)
            if self._text[place] == quote:
                break
            piece, place = self._piece(place)
            data += piece
        text = self._text[start : place + 1]
        value = self._bounded(bytes(data), start)
        return _Token(_Word.STRING, text, start, value), place + 1

    def _piece(self, place: int) -> tuple[bytes, int]:
        character = self._text[place]
        if character != "\\":
            return _encode(character), place + 1
        match = _ESCAPE.match(self._text, place)
        if match is None:
            raise self.fail("an escape that does not exist", place)
        return self._escaped(match), match.end()

    def _escaped(self, match: re.Match[str]) -> bytes:
        if match["plain"]:
            return bytes([_PLAIN[match["plain"]]])
        if match["byte"]:
            return bytes([int(match["byte"], 16)])
        code = int(match["code"] or match["long"], 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise self.fail("no such character", match.start())
        return chr(code).encode()

    def _bounded(self, data: bytes, start: int) -> bytes:
        if 0 in data:
            raise self.fail("texts of probes never hold a NUL", start)
        if len(data) > MAX_STRING:
            message = f"strings are compared up to {MAX_STRING} bytes"
            raise self.fail(f"{message}, this one has {len(data)}", start)
        return data


def _fraction(digits: str) -> Fraction:
    """The exact number, without building powers that cannot be times anyway."""
    mantissa, _, power = digits.lower().partition("e")
    exponent = max(-40, min(int(power or 0), 40))
    return Fraction(mantissa) * Fraction(10) ** exponent


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# Grammar


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        self._lexer = _Lexer(text)
        self._tokens = self._lexer.tokens()
        self._kinds = kinds
        self._place = 0
        self._depth = 0
        self._comparisons = 0

    def parse(self) -> Filter:
        if self._at_end():
            raise self._fail("an empty filter", self._next)
        tree = self._disjunction()
        if not self._at_end():
            raise self._unexpected_rest()
        return tree

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _at_end(self) -> bool:
        return self._next.word is _Word.END

    def _take(self) -> _Token:
        token = self._next
        self._place += not self._at_end()
        return token

    def _accept(self, word: _Word, text: str) -> bool:
        if self._next.word is word and self._next.text == text:
            self._place += 1
            return True
        return False

    def _fail(self, message: str, token: _Token) -> FilterError:
        return self._lexer.fail(message, token.position)

    def _unexpected_rest(self) -> FilterError:
        token = self._next
        if token.text == ")":
            return self._fail("')' closes nothing", token)
        if token.text in _OPERATORS:
            message = "a comparison has two sides; join several with 'and'"
            return self._fail(message, token)
        return self._fail("expected 'and', 'or' or the end", token)

    def _disjunction(self) -> Filter:
        terms = [self._conjunction()]
        while self._accept(_Word.NAME, "or"):
            terms.append(self._conjunction())
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def _conjunction(self) -> Filter:
        terms = [self._negation()]
        while self._accept(_Word.NAME, "and"):
            terms.append(self._negation())
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def _negation(self) -> Filter:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._fail(f"nested deeper than {MAX_DEPTH}", self._next)
        tree = self._negated()
        self._depth -= 1
        return tree

    def _negated(self) -> Filter:
        if self._accept(_Word.NAME, "not"):
            return Not(self._negation())
        opening = self._next
        if not self._accept(_Word.SIGN, "("):
            return self._comparison()
        tree = self._disjunction()
        if not self._accept(_Word.SIGN, ")"):
            if self._at_end():
                raise self._fail("'(' is never closed", opening)
            raise self._unexpected_rest()
        return tree

    def _comparison(self) -> Comparison:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            message = f"a filter has at most {MAX_COMPARISONS} comparisons"
            raise self._fail(message, self._next)
        left = self._side()
        if self._next.text not in _OPERATORS or self._next.word is not _Word.SIGN:
            return self._alone(left)
        sign = self._take()
        right = self._side()
        return self._pair(left, sign, right)

    def _side(self) -> _Token:
        token = self._next
        if token.word in (_Word.SIGN, _Word.END) or token.text in ("and", "or", "not"):
            raise self._fail("expected a name or a constant", token)
        if _is_name(token):
            self._kind(token)
        return self._take()

    def _alone(self, token: _Token) -> Comparison:
        if not _is_name(token):
            raise self._fail("a constant alone is no comparison", token)
        if self._kind(token) is not Kind.BOOL:
            raise self._fail("expected a comparison after this name", token)
        return Comparison(token.text, Kind.BOOL, "==", True)

    def _pair(self, left: _Token, sign: _Token, right: _Token) -> Comparison:
        if _is_name(left) and _is_name(right):
            raise self._fail("a name is compared with a constant", right)
        if not _is_name(left) and not _is_name(right):
            raise self._fail("one side of a comparison is a name", left)
        if _is_name(left):
            return self._typed(left, sign, right, sign.text)
        if sign.text == "^=":
            raise self._fail("'^=' has the name on its left", sign)
        return self._typed(right, sign, left, _MIRRORED.get(sign.text, sign.text))

    def _kind(self, name: _Token) -> Kind:
        kind = self._kinds.get(name.text)
        if kind is None:
            raise self._unknown(name)
        return kind

    def _unknown(self, name: _Token) -> FilterError:
        from difflib import get_close_matches

        near = get_close_matches(name.text, self._kinds, n=3, cutoff=0.6)
        if near:
            ending = f"; did you mean {' or '.join(near)}?"
        else:
            ending = f"; there are {', '.join(self._kinds)}"
        return self._fail(f"no operand {name.text!r}{ending}", name)

    def _typed(
        self, name: _Token, sign: _Token, literal: _Token, op: str
    ) -> Comparison:
        kind = self._kind(name)
        constant = self._constant(name, kind, literal)
        self._check_operator(kind, sign, constant)
        return Comparison(name.text, kind, op, constant)

    def _check_operator(self, kind: Kind, sign: _Token, constant: Constant) -> None:
        ordered = sign.text in _MIRRORED
        if constant is None and sign.text not in ("==", "!="):
            raise self._fail("nil is compared with '==' or '!='", sign)
        if kind is Kind.TEXT and ordered:
            raise self._fail("texts are compared with '==', '!=' or '^='", sign)
        if kind is Kind.BOOL and ordered:
            raise self._fail("true and false are compared with '==' or '!='", sign)
        if kind is not Kind.TEXT and sign.text == "^=":
            raise self._fail("only texts have a beginning", sign)

    def _constant(self, name: _Token, kind: Kind, literal: _Token) -> Constant:
        if literal.word is _Word.NAME:
            return self._word_constant(name, kind, literal)
        if literal.word is _Word.STRING:
            if kind is not Kind.TEXT:
                raise self._mismatch(name, kind, literal)
            return literal.value
        if literal.is_time and not name.text.endswith("_ns"):
            raise self._fail("only names that end in _ns are times", literal)
        if kind is Kind.FLOAT:
            return float(self._in_range(kind, literal))
        if kind.is_integer:
            return self._in_range(kind, literal)
        raise self._mismatch(name, kind, literal)

    def _word_constant(self, name: _Token, kind: Kind, literal: _Token) -> Constant:
        if literal.text == "nil":
            if not kind.has_nil:
                raise self._fail(f"{name.text} is never nil", literal)
            return None
        if kind is not Kind.BOOL:
            raise self._mismatch(name, kind, literal)
        return literal.text == "true"

    def _in_range(self, kind: Kind, literal: _Token) -> int | float:
        number = literal.value
        assert isinstance(number, (int, float))
        if isinstance(number, float):
            if kind is Kind.FLOAT:
                return number
            if not number.is_integer():
                raise self._fail("expected a whole number", literal)
            number = int(number)
        if kind is Kind.RAW_UNSIGNED:
            if not 0 <= number < 1 << 64:
                raise self._fail("outside of the 64 bits without a sign", literal)
        elif not -(1 << 63) <= number < 1 << 63:
            raise self._fail("outside of the 64 bits with a sign", literal)
        return number

    def _mismatch(self, name: _Token, kind: Kind, literal: _Token) -> FilterError:
        return self._fail(f"{name.text} is {kind.value}", literal)


def _is_name(token: _Token) -> bool:
    return token.word is _Word.NAME and token.text not in _WORDS
