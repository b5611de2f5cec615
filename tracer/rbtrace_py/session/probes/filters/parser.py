"""The grammar of filters, and the rules for valid comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rbtrace_py.errors import FilterError
from rbtrace_py.model.probes import Operand, OperandType
from rbtrace_py.session.probes.filters.lexer import Lexer, Token, Word
from rbtrace_py.session.probes.filters.tree import (
    And,
    Comparison,
    Constant,
    Filter,
    Kind,
    Not,
    Or,
)

MAX_TEXT = 4000
MAX_DEPTH = 32
MAX_COMPARISONS = 64
PSEUDO_OPERANDS = ("pid", "tid")
"""Fields of every event; an operand of the same name takes precedence."""

_UNLIKELY_NANOSECONDS = 10_000
"""Users do not search for spans below this duration in ns: a unit may be missing."""

_WORDS = ("and", "or", "not", "true", "false", "nil")
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "^=")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def parse_filter(text: str, operands: Mapping[str, OperandType | Operand]) -> Filter:
    """Parse a filter.

    Args:
        text: The filter.
        operands: Operands that it may name, besides ``PSEUDO_OPERANDS``. An operand of
            unknown type is unsigned unless its ``Operand`` says that it is signed.

    Returns:
        The typed tree.

    Raises:
        FilterError: The filter is invalid.
    """
    kinds = dict.fromkeys(PSEUDO_OPERANDS, Kind.RAW_UNSIGNED)
    kinds.update((name, _kind_of(operand)) for name, operand in operands.items())
    return _Parser(_bounded(text), kinds).parse()


def check_syntax(text: str) -> None:
    """Check a filter without its operands.

    Raises:
        FilterError: The filter is invalid for any operands.
    """
    _SyntaxParser(_bounded(text), {}).parse()


def time_notes(text: str) -> list[str]:
    """Return notes on times that are too short to be meant as nanoseconds."""
    notes = []
    tokens = Lexer(text).tokens()
    for left, sign, right in zip(tokens, tokens[1:], tokens[2:], strict=False):
        op = sign.text
        if op not in _OPERATORS:
            continue
        name, literal = left, right
        if not _is_name(left):
            name, literal, op = right, left, _MIRRORED.get(op, op)
        if literal.is_time or not name.text.endswith("_ns"):
            continue
        number = literal.value
        if isinstance(number, int | float) and 0 < number < _UNLIKELY_NANOSECONDS:
            meant = f"{name.text.removesuffix('_ns')} {op} {literal.text}ms"
            written = f"{name.text} {op} {literal.text}"
            notes.append(f"{written} is in nanoseconds; milliseconds are {meant}")
    return notes


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise FilterError(f"a filter has at most {MAX_TEXT} characters", text, MAX_TEXT)
    return text


def _kind_of(operand: OperandType | Operand) -> Kind:
    kind = operand.type if isinstance(operand, Operand) else operand
    if kind == OperandType.UNKNOWN:
        signed = isinstance(operand, Operand) and operand.signed
        return Kind.RAW_SIGNED if signed else Kind.RAW_UNSIGNED
    return {
        OperandType.INTEGER: Kind.SIGNED,
        OperandType.NIL: Kind.SIGNED,
        OperandType.FLOAT: Kind.FLOAT,
        OperandType.BOOL: Kind.BOOL,
    }.get(kind, Kind.TEXT)


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        self._lexer = Lexer(text)
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
    def _next(self) -> Token:
        return self._tokens[self._place]

    def _at_end(self) -> bool:
        return self._next.word is Word.END

    def _take(self) -> Token:
        token = self._next
        self._place += not self._at_end()
        return token

    def _accept(self, word: Word, text: str) -> bool:
        if self._next.word is word and self._next.text == text:
            self._place += 1
            return True
        return False

    def _fail(self, message: str, token: Token) -> FilterError:
        return self._lexer.fail(message, token.position)

    def _unexpected_rest(self) -> FilterError:
        token = self._next
        if token.text == ")":
            return self._fail("unmatched ')'", token)
        if token.text in _OPERATORS:
            message = "comparisons cannot be chained; join them with 'and'"
            return self._fail(message, token)
        return self._fail("expected 'and', 'or' or the end", token)

    def _disjunction(self) -> Filter:
        terms = [self._conjunction()]
        while self._accept(Word.NAME, "or"):
            terms.append(self._conjunction())
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def _conjunction(self) -> Filter:
        terms = [self._negation()]
        while self._accept(Word.NAME, "and"):
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
        if self._accept(Word.NAME, "not"):
            return Not(self._negation())
        opening = self._next
        if not self._accept(Word.SIGN, "("):
            return self._comparison()
        tree = self._disjunction()
        if not self._accept(Word.SIGN, ")"):
            if self._at_end():
                raise self._fail("'(' is not closed", opening)
            raise self._unexpected_rest()
        return tree

    def _comparison(self) -> Comparison:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            message = f"a filter has at most {MAX_COMPARISONS} comparisons"
            raise self._fail(message, self._next)
        left = self._side()
        if self._next.text not in _OPERATORS or self._next.word is not Word.SIGN:
            return self._alone(left)
        sign = self._take()
        right = self._side()
        return self._pair(left, sign, right)

    def _side(self) -> Token:
        token = self._next
        if token.word in (Word.SIGN, Word.END) or token.text in ("and", "or", "not"):
            raise self._fail("expected a name or a constant", token)
        self._take()
        if not _is_name(token):
            return token
        if token.text not in self._kinds and f"{token.text}_ns" in self._kinds:
            return replace(token, text=f"{token.text}_ns", is_time=True)
        self._kind(token)
        return token

    def _alone(self, token: Token) -> Comparison:
        if not _is_name(token):
            raise self._fail("a constant alone is not a comparison", token)
        if self._kind(token) is not Kind.BOOL:
            raise self._fail("expected a comparison after this name", token)
        return Comparison(token.text, Kind.BOOL, "==", True)

    def _pair(self, left: Token, sign: Token, right: Token) -> Comparison:
        if _is_name(left) and _is_name(right):
            raise self._fail("a name can only be compared with a constant", right)
        if not _is_name(left) and not _is_name(right):
            raise self._fail("one side of a comparison must be a name", left)
        if _is_name(left):
            return self._typed(left, sign, right, sign.text)
        if sign.text == "^=":
            raise self._fail("'^=' needs the name on its left", sign)
        return self._typed(right, sign, left, _MIRRORED.get(sign.text, sign.text))

    def _kind(self, name: Token) -> Kind:
        kind = self._kinds.get(name.text)
        if kind is None:
            raise self._unknown(name)
        return kind

    def _unknown(self, name: Token) -> FilterError:
        from difflib import get_close_matches

        near = get_close_matches(name.text, self._kinds, n=3, cutoff=0.6)
        if near:
            ending = f"; did you mean {' or '.join(near)}?"
        else:
            ending = f"; there are {', '.join(self._kinds)}"
        return self._fail(f"no argument {name.text!r}{ending}", name)

    def _typed(self, name: Token, sign: Token, literal: Token, op: str) -> Comparison:
        kind = self._kind(name)
        constant = self._constant(name, kind, literal)
        self._check_operator(kind, sign, constant)
        return Comparison(name.text, kind, op, constant)

    def _check_operator(self, kind: Kind, sign: Token, constant: Constant) -> None:
        ordered = sign.text in _MIRRORED
        if constant is None and sign.text not in ("==", "!="):
            raise self._fail("nil can only be compared with '==' or '!='", sign)
        if kind is Kind.TEXT and ordered:
            raise self._fail(
                "strings can only be compared with '==', '!=' or '^='", sign
            )
        if kind is Kind.BOOL and ordered:
            raise self._fail(
                "true and false can only be compared with '==' or '!='", sign
            )
        if kind is not Kind.TEXT and sign.text == "^=":
            raise self._fail("'^=' works only on strings", sign)

    def _constant(self, name: Token, kind: Kind, literal: Token) -> Constant:
        if literal.word is Word.NAME:
            return self._word_constant(name, kind, literal)
        if literal.word is Word.STRING:
            if kind is not Kind.TEXT:
                raise self._mismatch(name, kind, literal)
            return literal.value
        if name.is_time and not literal.is_time:
            raise self._fail("a time has a unit: 15ms, 2s", literal)
        if literal.is_time and not name.text.endswith("_ns"):
            raise self._fail("only names that end in _ns are times", literal)
        if kind is Kind.FLOAT:
            return float(self._in_range(kind, literal))
        if kind.is_integer:
            return self._in_range(kind, literal)
        raise self._mismatch(name, kind, literal)

    def _word_constant(self, name: Token, kind: Kind, literal: Token) -> Constant:
        if literal.text == "nil":
            if not kind.has_nil:
                raise self._fail(f"{name.text} is never nil", literal)
            return None
        if kind is not Kind.BOOL:
            raise self._mismatch(name, kind, literal)
        return literal.text == "true"

    def _in_range(self, kind: Kind, literal: Token) -> int | float:
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
                raise self._fail("out of range for an unsigned 64-bit number", literal)
        elif not -(1 << 63) <= number < 1 << 63:
            raise self._fail("out of range for a signed 64-bit number", literal)
        return number

    def _mismatch(self, name: Token, kind: Kind, literal: Token) -> FilterError:
        return self._fail(f"{name.text} is {kind.value}", literal)


class _SyntaxParser(_Parser):
    """Accepts any name as an operand of a fitting type."""

    def _kind(self, name: Token) -> Kind:
        return Kind.BOOL

    def _typed(self, name: Token, sign: Token, literal: Token, op: str) -> Comparison:
        return Comparison(name.text, Kind.BOOL, op, None)


def _is_name(token: Token) -> bool:
    return token.word is Word.NAME and token.text not in _WORDS
