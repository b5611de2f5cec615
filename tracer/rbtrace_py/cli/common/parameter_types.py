"""Types of option values: times and sizes."""

from __future__ import annotations

import re
from typing import Any

import click

from rbtrace_py.errors import UsageError

_TIME_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-zµμ]*)\s*")
_UNITS = {
    "": 1.0,
    "ns": 1e-9,
    **dict.fromkeys(("us", "µs", "μs"), 1e-6),
    "ms": 0.001,
    "s": 1.0,
    **dict.fromkeys(("m", "min"), 60.0),
    "h": 3600.0,
    "d": 86_400.0,
}


class Seconds(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A time in seconds: ``10``, ``0.5``, ``20us``, ``500ms``, ``1h30m``, ``7d``."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        parts: list[tuple[str, str]] = _TIME_PART.findall(text)
        units = [unit for _, unit in parts]
        is_whole = not _TIME_PART.sub("", text) and _UNITS.keys() >= set(units)
        if not is_whole or not parts or (len(parts) > 1 and "" in units):
            self.fail(
                f"{value!r} is not a time; write 10, 20us, 500ms, 2m, 1h30m or 7d"
            )
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if seconds <= 0:
            self.fail("a time must be greater than 0")
        return seconds


class Milliseconds(Seconds):
    """A time in milliseconds: ``10``, ``10ms``, ``0.01s``."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        text = str(value).strip()
        bare = text.replace(".", "", 1).isdigit()
        return super().convert(f"{text}ms" if bare else text, param, ctx) * 1000


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of bytes: ``500MB``, ``1GB``, ``65536``."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).strip())
        if not found or not float(found[1]):
            raise UsageError(f"{value!r} is not a size", "Write 500MB or 2GB")
        return int(float(found[1]) * 1000 ** _POWERS.index(found[2].upper()))


_POWERS = ("", "K", "M", "G", "T")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]?)i?B?", re.IGNORECASE)
