"""Escaping of strings from a target or a file."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape control characters: the string is untrusted."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
