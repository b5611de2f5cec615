"""Escaping of text from a target or a file."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape control characters: the text may come from anywhere."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
