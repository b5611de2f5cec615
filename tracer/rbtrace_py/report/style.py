"""Abilities of the place that a report goes to: color, characters, columns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

WIDTH = 80
_NARROWEST = 20


@dataclass(frozen=True, slots=True)
class Style:
    """Passed to every report; it decides nothing about what is said.

    colour: may lines hold ANSI sequences?
    ascii: must lines be ASCII?
    width: columns a line should not go beyond
    spare: columns beyond that, which the terminal has
    is_whole: are names whole, however long? Where programs read them
    height: lines of the terminal; 0: it is none
    """

    colour: bool = False
    ascii: bool = False
    width: int = WIDTH
    spare: int = 0
    is_whole: bool = False
    height: int = 0

    @classmethod
    def for_stream(
        cls, stream: TextIO, colour: bool | None = None, ascii_only: bool = False
    ) -> Style:
        """Return the style for ``stream``. ``colour`` None: as the terminal is."""
        encoding = (stream.encoding or "ascii").lower().replace("-", "")
        if colour is None:
            colour = can_move(stream) and not os.environ.get("NO_COLOR")
        is_ascii = ascii_only or not encoding.startswith("utf")
        columns, height = _size(stream)
        width = min(columns, WIDTH)
        spare = columns - width
        is_whole = not stream.isatty()
        return cls(colour, is_ascii, width, spare, is_whole, height)

    @property
    def room(self) -> int:
        """Columns that a path may take: of it nothing is left out that fits."""
        return self.width + self.spare

    def bold(self, text: str) -> str:
        return self._paint("1", text)

    def dim(self, text: str) -> str:
        return self._paint("2", text)

    def red(self, text: str) -> str:
        return self._paint("31", text)

    def green(self, text: str) -> str:
        return self._paint("32", text)

    def yellow(self, text: str) -> str:
        return self._paint("33", text)

    def cyan(self, text: str) -> str:
        return self._paint("36", text)

    def pick(self, text: str, fallback: str) -> str:
        """``text``, or ``fallback`` where only ASCII goes."""
        return fallback if self.ascii else text

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[m" if self.colour and text else text


def can_move(stream: TextIO) -> bool:
    """Is it a terminal that understands more than lines?"""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _size(stream: TextIO) -> tuple[int, int]:
    """Return the columns and lines of a terminal; of anything else a report's and 0."""
    if not stream.isatty():
        return WIDTH, 0
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return WIDTH, 0
    # A terminal that does not know its size says 0.
    return max(columns, _NARROWEST) if columns else WIDTH, lines


PLAIN = Style()
ASCII = Style(ascii=True)
