"""The syntax tree of a filter: comparisons and their operators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Constant = int | float | bool | bytes | None


class Kind(Enum):
    """How the 8 raw bytes of an operand are compared."""

    SIGNED = "an Integer"
    FLOAT = "a Float"
    BOOL = "a boolean"
    TEXT = "a String"
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
    """``operand op constant``; the constant None represents nil."""

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
