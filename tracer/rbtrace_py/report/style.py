"""Capabilities of a report's destination: color, characters, columns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

WIDTH = 80
_NARROWEST = 20


@dataclass(frozen=True, slots=True)
class Style:
    """Capabilities of a report's destination. They do not affect the report's content.

    Attributes:
        colour: True if lines may contain ANSI sequences.
        ascii: True if lines must be ASCII.
        width: Maximum number of columns of a line.
        spare: Further columns of the terminal.
        is_whole: True if long names are not cut, because programs read the report.
        height: Lines of the terminal; 0 if the destination is not a terminal.
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
        """Return the style for ``stream``. Without ``colour``, the terminal decides."""
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
        """Columns for a path, which may use the terminal's full width."""
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
        """Return ``text``, or ``fallback`` if lines must be ASCII."""
        return fallback if self.ascii else text

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[m" if self.colour and text else text


def can_move(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with cursor movement."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _size(stream: TextIO) -> tuple[int, int]:
    """Return the columns and lines of a terminal, or else a report's columns and 0."""
    if not stream.isatty():
        return WIDTH, 0
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return WIDTH, 0
    # A terminal of unknown size reports 0.
    return max(columns, _NARROWEST) if columns else WIDTH, lines


PLAIN = Style()
ASCII = Style(ascii=True)
