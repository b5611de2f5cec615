"""Rings fit into the free memory of their process."""

from __future__ import annotations

import pytest

from rbtrace_py.session.methods.calls import MOST_MEMORY, ring_sizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("records", "most", "expected"),
    [
        (262_144, MOST_MEMORY, (256, 262_144)),
        (262_144, 64 * MIB, (16, 262_144)),
        (262_144, 7 * MIB, (28, 16_384)),
        (1024, 7 * MIB, (448, 1024)),
        (1024, MOST_MEMORY, (4096, 1024)),
        (1 << 22, MOST_MEMORY, (16, 1 << 22)),
        (262_144, 0, (16, 256)),
    ],
)
def test_ring_sizes(records: int, most: int, expected: tuple[int, int]) -> None:
    assert ring_sizes(records, most) == expected
