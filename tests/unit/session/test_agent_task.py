"""Output of code in a process, as a hostile process would write it."""

from __future__ import annotations

import random
import struct

import pytest

from processes import times
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.session.inside.agent_task import MAX_FIELD, MAX_FIELDS, Records

SEED = 20_260_104


def record(*fields: bytes) -> bytes:
    sized = (struct.pack("<I", len(field)) + field for field in fields)
    return struct.pack("<I", len(fields)) + b"".join(sized)


def test_records_in_pieces() -> None:
    expected = [(b"a", b"", b"bcd"), (), (bytes(300),)]
    data = b"".join(record(*fields) for fields in expected)
    random_ = random.Random(SEED)
    for _ in range(times(2_000)):
        records, found, at = Records(), [], 0
        while at < len(data):
            size = random_.randrange(1, 40)
            found += records.feed(data[at : at + size])
            at += size
        assert found == expected


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", MAX_FIELDS + 1),
        struct.pack("<II", 1, MAX_FIELD + 1),
        record(b"a") + b"\xff\xff\xff\xff",
        record(*[bytes(MAX_FIELD)] * 17),
    ],
)
def test_malformed_records(data: bytes) -> None:
    with pytest.raises(BrokenAgent):
        Records().feed(data)
