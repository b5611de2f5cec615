"""Values of expressions, from the bytes that the target wrote."""

from __future__ import annotations

import random
import struct

from processes import times
from rbtrace_py.aggregate.callvalues import values_of

SELECT = [(), ("self", "@x")]
SEED = 20_260_105


def packed(number: int, reason: int, *values: bytes) -> bytes:
    """Pack values as in docs/agent/memory.md."""
    texts = [struct.pack("<H", len(value)) + value for value in values]
    return struct.pack("<HB", number, reason) + b"".join(texts)


def test_each_expression_and_its_value() -> None:
    data = packed(1, 0, '"é"'.encode(), b"3")
    assert values_of(data, SELECT) == (("self", '"é"'), ("@x", "3"))


def test_why_there_are_none() -> None:
    late = "(switched off: it took too long three times in a row)"
    assert values_of(packed(1, 1), SELECT) == (("self", late), ("@x", late))
    many = "(too many were under way)"
    assert values_of(packed(1, 2), SELECT) == (("self", many), ("@x", many))
    stack = "(no stack was left for it)"
    assert values_of(packed(1, 3), SELECT) == (("self", stack), ("@x", stack))
    memory = "(no memory was left for it)"
    assert values_of(packed(1, 4), SELECT) == (("self", memory), ("@x", memory))


def test_malformed_values() -> None:
    """Too many or too few values, truncated, not UTF-8, or of another selector."""
    three = values_of(packed(1, 0, b"1", b"2", b"3"), SELECT)
    assert three == (("self", "1"), ("@x", "2"))
    assert values_of(packed(1, 0, b"1"), SELECT) == (("self", "1"),)
    assert values_of(packed(1, 0, b"1234")[:-2], SELECT) == (("self", "12"),)
    assert values_of(packed(1, 0, b"\xff"), SELECT) == (("self", "\ufffd"),)
    assert values_of(packed(0, 0, b"1"), SELECT) == ()
    assert values_of(packed(7, 0, b"1"), SELECT) == ()
    assert values_of(b"\1", SELECT) == ()
    assert values_of(packed(1, 9), SELECT)[0] == ("self", "(unknown)")


def test_anything() -> None:
    chance = random.Random(SEED)
    for _ in range(times(10_000)):
        data = chance.randbytes(chance.randrange(60))
        for expression, value in values_of(b"\1\0" + data, SELECT):
            assert expression in ("self", "@x")
            assert len(value) <= 60
