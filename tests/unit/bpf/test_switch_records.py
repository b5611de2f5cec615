"""Reading of the kernel's switch records, even if the kernel omitted one."""

from __future__ import annotations

import pytest

from rbtrace_py.bpf.abi import SWITCH_RECORD
from rbtrace_py.bpf.switch_records import SwitchRecords
from rbtrace_py.model.switches import Switch, SwitchKind

PID, TID, OWN, OFFSET = 40, 71, 7, 1_000_000


def record(
    what: SwitchKind,
    time: int,
    *,
    ran: int = 0,
    own: int = OWN,
    state: int = 0,
    lost: int = 0,
) -> bytes:
    return SWITCH_RECORD.pack(time, ran, PID, TID, own, state, lost, what, 3)


def read(*records: bytes) -> list[Switch]:
    reader = SwitchRecords(OFFSET)
    reader.watched.add(PID)
    reader.know(PID, TID, OWN, 100, 5)
    return [switch for each in records for switch in reader.read(each)]


def told(*records: bytes) -> list[tuple[SwitchKind, int, str, int]]:
    found = read(*records)
    assert all(s.tid == OWN for s in found if s.what is not SwitchKind.LOST)
    return [(s.what, s.time - OFFSET, s.state, s.value) for s in found]


def test_records() -> None:
    assert told(
        record(SwitchKind.WOKEN, 10),
        record(SwitchKind.ON, 20),
        record(SwitchKind.OFF, 30, ran=110, state=1),
        record(SwitchKind.WOKEN, 40),
        record(SwitchKind.ON, 50),
        record(SwitchKind.OFF, 60, ran=120, own=0, state=0x80),
    ) == [
        (SwitchKind.WOKEN, 10, "", 3),
        (SwitchKind.ON, 20, "", 3),
        (SwitchKind.OFF, 30, "S", 3),
        (SwitchKind.WOKEN, 40, "", 3),
        (SwitchKind.ON, 50, "", 3),
        (SwitchKind.OFF, 60, "X", 3),
    ]


@pytest.mark.parametrize(
    ("state", "letter"),
    [
        (0, "R"),
        (0x1, "S"),
        (0x402, "D"),
        (0x102, "D"),
        (0x104, "T"),
        (0x8, "t"),
        (0x10, "X"),
        (0x20, "X"),
        (0x80, "X"),
        (0x2001, "S"),
    ],
)
def test_states(state: int, letter: str) -> None:
    ((_, _, found, _),) = told(record(SwitchKind.OFF, 10, state=state))
    assert found == letter


def test_a_turn_that_began_without_a_word() -> None:
    """The thread's own counter shows how long it ran."""
    first = record(SwitchKind.OFF, 30, ran=110)
    assert told(first, record(SwitchKind.OFF, 90, ran=150))[1:] == [
        (SwitchKind.ON, 50, "", 3),
        (SwitchKind.OFF, 90, "R", 3),
    ]
    # Never before what was known, nor after its end.
    assert told(first, record(SwitchKind.OFF, 90, ran=999))[1] == (
        SwitchKind.ON,
        30,
        "",
        3,
    )
    assert told(first, record(SwitchKind.OFF, 90, ran=0))[1] == (
        SwitchKind.ON,
        90,
        "",
        3,
    )
    woken = record(SwitchKind.WOKEN, 80)
    assert told(woken, record(SwitchKind.OFF, 90, ran=105))[1] == (
        SwitchKind.ON,
        85,
        "",
        3,
    )
    # It is unknown whether a thread that was found was on a CPU.
    assert [t[0] for t in told(record(SwitchKind.OFF, 90, ran=150))] == [SwitchKind.OFF]


def test_losses_are_reported_after_the_earlier_records() -> None:
    found = told(
        record(SwitchKind.OFF, 30, ran=110),
        record(SwitchKind.OFF, 90, ran=150, lost=4),
        record(SwitchKind.ON, 95, lost=3),
        record(SwitchKind.OFF, 99, ran=160, lost=5),
    )
    assert found == [
        (SwitchKind.OFF, 30, "R", 3),
        (SwitchKind.LOST, 30, "", 4),
        # The state between the two is unknown.
        (SwitchKind.OFF, 90, "R", 3),
        (SwitchKind.ON, 95, "", 3),
        (SwitchKind.LOST, 95, "", 1),
        (SwitchKind.OFF, 99, "R", 3),
    ]


def test_the_count_of_what_is_lost_goes_round() -> None:
    reader = SwitchRecords(0)
    assert [s.value for s in reader.missing(0x7FFFFFFF)] == [0x7FFFFFFF]
    assert [s.value for s in reader.missing(0xFFFFFFFE)] == [0x7FFFFFFF]
    assert [s.value for s in reader.missing(0x100000001)] == [3]
    assert list(reader.missing(1)) == []


def test_a_process_that_is_not_watched_any_more() -> None:
    reader = SwitchRecords(OFFSET)
    reader.watched.add(PID)
    assert len(list(reader.read(record(SwitchKind.ON, 10)))) == 1
    reader.forget(PID)
    assert list(reader.read(record(SwitchKind.OFF, 20, own=0))) == []
    # Another thread may have its ID by then, and it may have another ID.
    reader.watched.add(PID)
    (found,) = reader.read(record(SwitchKind.ON, 30, own=9))
    assert found.tid == 9
