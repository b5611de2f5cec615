"""Distributions: the number of values in each bucket.

Buckets are log-linear with 3 significant digits. They equal the buckets of
HdrHistogram(1, 3_600_000_000_000, 3), so a distribution counted in the kernel gives the
same results as an HdrHistogram of all values. Distributions of methods may have 2
digits. The formula has no upper limit: any value below 2**63 has a bucket.

Distributions are immutable: ``minus`` and ``merge`` return new objects. Counts are
stored by the kernel's sparse bucket key, a u32, in arrays. They take 12 bytes per
bucket, because ``--by`` may keep hundreds of thousands of distributions for days.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

DENSE_BUCKETS = 33_792
"""Buckets that cover 0 to 2**42 - 1 (an hour and 13 minutes in nanoseconds)."""

DENSE_MAX_VALUE = (1 << 42) - 1
"""The largest value with a bucket below ``DENSE_BUCKETS``."""

NEGATIVE_KEY = 0x80000000
"""Set in the key of a negative integer; the rest is the bucket of its magnitude."""

FLOAT_SHIFT = 42
"""Low bits of a double that its key omits; sign, exponent, and 10 bits remain."""

_BITS = {2: 8, 3: 11}
"""Number of bits by digits: each value below 2 ** bits has its own bucket."""

_FLOAT_SIGN = 1 << 21
_FLOAT_INFINITY = 0x7FF << 10

Number = int | float
Bucket = tuple[Number, Number, int]
"""Lowest value, highest value, count."""


def bucket_index(value: int, digits: int = 3) -> int:
    """Return the index of the bucket of ``value``, from 0 to 2**63 - 1."""
    bits = _BITS[digits]
    shift = (value >> bits).bit_length()
    return (shift << bits - 1) + (value >> shift)


def bucket_bounds(index: int, digits: int = 3) -> tuple[int, int]:
    """Return the lowest and highest value of bucket ``index``, inclusive."""
    bits = _BITS[digits] - 1
    shift = max((index >> bits) - 1, 0)
    lowest = (index - (shift << bits)) << shift
    return lowest, lowest + (1 << shift) - 1


def bucket_middle(index: int, digits: int = 3) -> int:
    """Return the value that represents bucket ``index`` in a mean."""
    lowest, highest = bucket_bounds(index, digits)
    return lowest + ((highest - lowest + 1) >> 1)


def integer_key(value: int) -> int:
    """Return the kernel's key of ``value``, from -(2**63 - 1) to 2**63 - 1."""
    if value < 0:
        return bucket_index(-value) | NEGATIVE_KEY
    return bucket_index(value)


def float_bits(value: float) -> int:
    """Return the IEEE 754 bits of ``value`` as a u64."""
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


def float_key(value: float) -> int:
    """Return the kernel's key of ``value``."""
    return float_bits(value) >> FLOAT_SHIFT


def _bits_float(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def _packed(code: str, numbers: list[int]) -> Sequence[int]:
    """Return the numbers in an array if they fit; numbers from a file may not fit."""
    try:
        return array(code, numbers)
    except OverflowError:
        return numbers


class Distribution(ABC):
    """Counts by bucket key, and their percentiles, mean, and limits.

    Args:
        counts: Counts by kernel key; counts of 0 are ignored.
    """

    kind: ClassVar[str]
    """Type of ``keys``: integer, signed, or float."""

    __slots__ = ("_amounts", "_cumulative", "_finite", "_keys")

    def __init__(self, counts: Mapping[int, int]) -> None:
        found = sorted(
            ((key, count) for key, count in counts.items() if count > 0),
            key=lambda pair: (not self._is_finite(pair[0]), self._rank(pair[0])),
        )
        # Finite values come first, ascending.
        self._keys = _packed("I", [key for key, _ in found])
        self._amounts = _packed("Q", [count for _, count in found])
        self._finite = sum(map(self._is_finite, self._keys))
        self._cumulative: Sequence[int] | None = None

    @property
    def keys(self) -> Mapping[int, int]:
        """Counts by kernel key, without empty buckets."""
        return dict(zip(self._keys, self._amounts, strict=True))

    @property
    def count(self) -> int:
        """Number of values; floats count only if finite."""
        return sum(self._amounts[: self._finite])

    @property
    def apart(self) -> dict[str, int]:
        """Counts of values outside the buckets by name, without counts of 0."""
        return {}

    @property
    def min(self) -> Number:
        """Lowest value of the lowest bucket; 0 without values."""
        return self._bounds(self._keys[0])[0] if self._finite else 0

    @property
    def max(self) -> Number:
        """Highest value of the highest bucket; 0 without values."""
        return self._bounds(self._keys[self._finite - 1])[1] if self._finite else 0

    @property
    def mean(self) -> float:
        """Mean of the middles of all buckets; 0.0 without values."""
        if not self._finite:
            return 0.0
        total = sum(self._middle(key) * count for key, count in self._pairs())
        return float(total) / self.count

    def percentile(self, percentile: float) -> Number:
        """Return the highest value of the bucket at ``percentile``, 0 to 100.

        At 0, it is the lowest value of the lowest bucket. Without values, it is 0.
        """
        if not self._finite:
            return 0
        if self._cumulative is None:
            amounts = self._amounts[: self._finite]
            self._cumulative = _packed("Q", list(accumulate(amounts)))
        wanted = int(min(percentile, 100.0) * self._cumulative[-1] / 100 + 0.5)
        place = bisect_left(self._cumulative, max(wanted, 1))
        return self._bounds(self._keys[place])[1 if percentile else 0]

    def buckets(self) -> Iterator[Bucket]:
        """Yield lowest value, highest value, and count of each bucket, ascending."""
        for key, count in self._pairs():
            lowest, highest = self._bounds(key)
            yield lowest, highest, count

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield key and count of each finite bucket, ascending."""
        return islice(zip(self._keys, self._amounts, strict=True), self._finite)

    def minus(self, older: Distribution) -> Self:
        """Return the values since ``older``, a snapshot of the same distribution."""
        before = older.keys
        return self._of(
            {key: count - before.get(key, 0) for key, count in self.keys.items()}
        )

    def merge(self, other: Distribution) -> Self:
        """Return the sum of two distributions of the same class."""
        merged = Counter(self.keys)
        merged.update(other.keys)
        return self._of(merged)

    def _of(self, counts: Mapping[int, int]) -> Self:
        """Return a distribution of the same kind."""
        return type(self)(counts)

    def _is_finite(self, key: int) -> bool:
        return True

    @abstractmethod
    def _rank(self, key: int) -> int:
        """Return a number that orders keys by their values."""

    @abstractmethod
    def _bounds(self, key: int) -> tuple[Number, Number]:
        """Return the lowest and highest value of a key's bucket."""

    @abstractmethod
    def _middle(self, key: int) -> Number:
        """Return the value that represents a key's bucket in a mean."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Distribution):
            return NotImplemented
        return self.kind == other.kind and self.keys == other.keys

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.keys!r})"


class Histogram(Distribution):
    """Integers from 0 to 2**63 - 1; a key is a bucket index.

    Percentiles, min, max, and mean equal an HdrHistogram's with as many digits.
    """

    kind = "integer"
    __slots__ = ("digits",)

    def __init__(self, counts: Mapping[int, int], digits: int = 3) -> None:
        super().__init__(counts)
        self.digits = digits
        """Significant digits of a value, 2 or 3."""

    @classmethod
    def from_values(cls, values: Iterable[int], digits: int = 3) -> Self:
        """Make a histogram of single values, each at least 0."""
        return cls(Counter(bucket_index(value, digits) for value in values), digits)

    def with_digits(self, digits: int) -> Self:
        """Return the same distribution with fewer digits."""
        counts: Counter[int] = Counter()
        for key, count in self.keys.items():
            lowest = bucket_bounds(key, self.digits)[0]
            counts[bucket_index(lowest, digits)] += count
        return type(self)(counts, digits)

    def merge(self, other: Distribution) -> Self:
        """Return the sum, with the lower number of digits."""
        assert isinstance(other, Histogram)
        if other.digits < self.digits:
            return self.with_digits(other.digits).merge(other)
        if self.digits < other.digits:
            other = other.with_digits(self.digits)
        return super().merge(other)

    def _of(self, counts: Mapping[int, int]) -> Self:
        return type(self)(counts, self.digits)

    def _rank(self, key: int) -> int:
        return key

    def _bounds(self, key: int) -> tuple[int, int]:
        return bucket_bounds(key, self.digits)

    def _middle(self, key: int) -> int:
        return bucket_middle(key, self.digits)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Histogram) and other.digits != self.digits:
            return False
        return super().__eq__(other)

    __hash__ = None


class SignedHistogram(Distribution):
    """Integers from -(2**63 - 1) to 2**63 - 1; ``integer_key`` returns their keys."""

    kind = "signed"
    __slots__ = ()

    @classmethod
    def from_values(cls, values: Iterable[int]) -> Self:
        """Make a distribution of single values, without INT64_MIN, which means nil."""
        return cls(Counter(map(integer_key, values)))

    def _rank(self, key: int) -> int:
        return -(key ^ NEGATIVE_KEY) if key & NEGATIVE_KEY else key

    def _bounds(self, key: int) -> tuple[int, int]:
        if key & NEGATIVE_KEY:
            lowest, highest = bucket_bounds(key ^ NEGATIVE_KEY)
            return -highest, -lowest
        return bucket_bounds(key)

    def _middle(self, key: int) -> int:
        if key & NEGATIVE_KEY:
            return -bucket_middle(key ^ NEGATIVE_KEY)
        return bucket_middle(key)


class FloatHistogram(Distribution):
    """Doubles; a key is the sign, exponent, and first 10 bits of the mantissa.

    Infinities and NaN are outside the buckets; ``apart`` counts them as ``inf``,
    ``-inf``, and ``nan``. Values closer to 0 than 2.2e-311 count as 0.0.
    """

    kind = "float"
    __slots__ = ()

    def __init__(self, counts: Mapping[int, int]) -> None:
        zeros = counts.get(_FLOAT_SIGN, 0)
        if zeros:
            counts = {**counts, 0: counts.get(0, 0) + zeros, _FLOAT_SIGN: 0}
        super().__init__(counts)

    @classmethod
    def from_values(cls, values: Iterable[float]) -> Self:
        """Make a distribution of single values, including NaN and infinities."""
        return cls(Counter(map(float_key, values)))

    @property
    def apart(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for key, count in self.keys.items():
            if not self._is_finite(key):
                found[_name_unbounded(key)] += count
        return dict(sorted(found.items()))

    @property
    def mean(self) -> float:
        count = self.count
        shares = ((key, amount / count) for key, amount in self._pairs())
        return sum((self._middle(key) * share for key, share in shares), 0.0)

    def _is_finite(self, key: int) -> bool:
        return key & ~_FLOAT_SIGN < _FLOAT_INFINITY

    def _rank(self, key: int) -> int:
        return -(key ^ _FLOAT_SIGN) if key & _FLOAT_SIGN else key

    def _bounds(self, key: int) -> tuple[float, float]:
        if key == 0:
            return 0.0, 0.0
        inner = _bits_float(key << FLOAT_SHIFT)
        outer = _bits_float((key + 1 << FLOAT_SHIFT) - 1)
        return min(inner, outer), max(inner, outer)

    def _middle(self, key: int) -> float:
        lowest, highest = self._bounds(key)
        return lowest / 2 + highest / 2


def _name_unbounded(key: int) -> str:
    if key & ~_FLOAT_SIGN > _FLOAT_INFINITY:
        return "nan"
    return "-inf" if key & _FLOAT_SIGN else "inf"
