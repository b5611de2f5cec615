"""Safe printing of bytes that a target chose."""

from __future__ import annotations


def safe_text(data: bytes, limit: int = 4096) -> str:
    """Return printable text for ``data``, cut at ``limit`` bytes.

    Backslashes and anything other than printable UTF-8 become escapes (``\\x1b``,
    ``\\u202e``), so that different bytes give different strings.
    """
    cut = data[:limit]
    if cut.isascii() and b"\\" not in cut:
        text = cut.decode("ascii")
        if text.isprintable():
            return text
    return "".join(map(_escape, cut.decode("utf-8", "surrogateescape")))


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if char.isprintable() and char != "\\":
        return char
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
