"""Syntax tree of a filter: comparisons, and what joins them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Constant = int | float | bool | bytes | None


class Kind(Enum):
    """The way to compare an operand's 8 raw bytes."""

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
