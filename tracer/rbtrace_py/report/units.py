"""Readable numbers: times, counts, shares, rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from rbtrace_py.report.style import Style

Unit = Literal["auto", "ns", "us", "ms", "s"]
"""Values of ``--unit``. ``auto`` selects a unit for each time."""

Number = int | float
Format = Callable[[Number], str]

_SIZES: dict[str, int] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_DECIMALS = {"ns": 0, "us": 1, "ms": 3, "s": 6}
_DIGITS = 3
_EXACT = 10**15


def duration(nanoseconds: Number, style: Style, unit: Unit = "auto") -> str:
    """Return ``1.23 ms``: 3 digits in a suitable unit, or a time in the given unit."""
    if unit != "auto":
        return f"{scaled(nanoseconds, unit)} {unit_name(unit, style)}"
    for name, size in _SIZES.items():
        text = significant(nanoseconds / size, keep_zeros=name != "ns")
        if "," not in text:
            break
    return f"{text} {unit_name(name, style)}"


def scaled(nanoseconds: Number, unit: str) -> str:
    """Return the number of a time in ``unit``, with a fixed number of decimals."""
    return f"{nanoseconds / _SIZES[unit]:,.{_DECIMALS[unit]}f}"


def edges(times: Sequence[Number], style: Style, unit: Unit = "auto") -> list[str]:
    """Return the edges of rows; 0 has no unit."""
    return _told_apart(times, lambda time: _edge(time, style, unit))


def plain_edges(numbers: Sequence[Number]) -> list[str]:
    """Return the edges of rows; integers are exact."""
    if all(isinstance(number, int) for number in numbers):
        return [plain(number) for number in numbers]
    return _told_apart(numbers, plain)


def _told_apart(numbers: Sequence[Number], write: Format) -> list[str]:
    """Write numbers with 4 significant digits, or exactly if some would look equal."""
    found = [write(float(f"{number:.4g}")) for number in numbers]
    if len(set(found)) == len(set(numbers)):
        return found
    return [write(number) for number in numbers]


def _edge(nanoseconds: Number, style: Style, unit: Unit) -> str:
    if not nanoseconds:
        return "0"
    name: str = unit
    if unit == "auto":
        name = next((n for n in reversed(_SIZES) if nanoseconds >= _SIZES[n]), "ns")
    return f"{_fixed(nanoseconds / _SIZES[name], 9)} {unit_name(name, style)}"


def plain(number: Number) -> str:
    """Return a number as short as a report's neighbors allow it to be."""
    if not math.isfinite(number):
        return "-Infinity" if number < 0 else "Infinity"
    if isinstance(number, int) or number.is_integer():
        return format_count(int(number)) if abs(number) < _EXACT else _power(number)
    if abs(number) < 1e-4:
        return _power(number)
    return _fixed(number, 9 if abs(number) < 1e6 else 3)


def value(number: Number) -> str:
    """Return a value of a distribution: integers exact, floats with 3 digits."""
    if isinstance(number, int):
        return plain(number)
    if number == 0 or 1e-4 <= abs(number) < _EXACT:
        return significant(number)
    return _power(number)


def significant(number: Number, keep_zeros: bool = False) -> str:
    """Return 3 significant digits, and all before the point: 1.23, 12.3, 1,234."""
    if number == 0:
        return "0"
    rounded = float(f"{number:.{_DIGITS - 1}e}") if abs(number) < 1000 else number
    before = math.floor(math.log10(abs(rounded))) + 1
    text = f"{rounded:,.{max(_DIGITS - before, 0)}f}"
    if keep_zeros or "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def format_count(number: int) -> str:
    """Return ``12,345``."""
    return f"{number:,}"


def plural(number: int, one: str, more: str = "") -> str:
    """Return ``1 probe`` or ``1,234 probes``."""
    return f"{format_count(number)} {one if number == 1 else more or f'{one}s'}"


def size(number: int) -> str:
    """Return ``1.23 MiB``: a number of bytes with 3 digits in a suitable unit."""
    names = ("B", "KiB", "MiB", "GiB", "TiB")
    place = next((n for n in range(4) if number < 1023.5 * 1024**n), 4)
    text = significant(number / 1024**place, keep_zeros=place > 0)
    return f"{text} {names[place]}"


def share(part: int, all_of_it: int) -> str:
    """Return a percentage with one decimal; ``<0.1`` if it only rounds to 0.0."""
    percent = 100 * part / all_of_it if all_of_it else 0.0
    if part and percent < 0.05:
        return "<0.1"
    if part < all_of_it and percent >= 99.95:
        return "99.9"
    return f"{percent:.1f}"


def span(nanoseconds: int) -> str:
    """Return the time of a measurement: ``10.0 s``, ``4 min 5 s``."""
    seconds = nanoseconds / 1e9
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def rate(count: int, nanoseconds: int) -> str:
    """Return ``1,234/s``; empty if no time has passed."""
    if nanoseconds <= 0:
        return ""
    return f"{significant(count * 1e9 / nanoseconds)}/s"


def unit_name(name: str, style: Style) -> str:
    """Return a unit as it is written."""
    return style.pick("µs", "us") if name == "us" else name


def _fixed(number: Number, decimals: int) -> str:
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _power(number: Number) -> str:
    mantissa, _, power = f"{float(number):.2e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(power)}"
