from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.linux.text import safe_text


def test_escapes() -> None:
    assert safe_text(b"shop checkout") == "shop checkout"
    assert safe_text("größe".encode()) == "größe"
    assert safe_text(b"\x1b[31m\n\0") == "\\x1b[31m\\x0a\\x00"
    assert safe_text(b"\xff\\") == "\\xff\\x5c"
    assert safe_text("\u202e\U000e0001".encode()) == "\\u202e\\U000e0001"
    assert safe_text(b"abcdef", limit=3) == "abc"


@given(st.binary(max_size=200))
def test_always_printable(data: bytes) -> None:
    assert safe_text(data).isprintable()


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_different_bytes_stay_different(one: bytes, other: bytes) -> None:
    assert (safe_text(one) == safe_text(other)) == (one == other)
