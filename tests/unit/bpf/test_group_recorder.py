"""Reading of the maps in which BPF programs record groups."""

from __future__ import annotations

import array

from rbtrace_py.bpf.abi import BUCKETS
from rbtrace_py.bpf.group_recorder import dense_buckets


def test_dense_counters() -> None:
    counters = array.array("Q", bytes(8 * BUCKETS))
    counters[0], counters[64], counters[BUCKETS - 1] = 3, 2**40, 1
    expected = {0: 3, 64: 2**40, BUCKETS - 1: 1}
    assert dense_buckets(counters.tobytes()) == expected
    assert dense_buckets(memoryview(counters)) == expected
    assert dense_buckets(bytes(8 * 33)) == {}
