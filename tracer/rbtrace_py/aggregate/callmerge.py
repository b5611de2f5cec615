"""Records of several streams, merged in the order of their times.

In mode slow, records arrive late and are in order only within one step.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from operator import itemgetter

from rbtrace_py.model.calls import (
    CALL_RECORD_SIZE,
    MAX_TICKS,
    TIMELESS,
    CallRecord,
    RingStep,
)

Placed = tuple[int, int, CallRecord]
"""Time, stream, and record. Times are in ticks and never decrease in a stream."""
_MOST_HELD = 1 << 21
"""Maximum number of records that wait for earlier records.

A corrupt process may never publish the earlier records.
"""
_time_of = itemgetter(0)


class CallMerge:
    """Orders a process's records.

    ``record_size`` is in bytes and includes fields that this version does not know.
    """

    def __init__(self, record_size: int = CALL_RECORD_SIZE) -> None:
        self._record = struct.Struct(f"<QIHBB{record_size - CALL_RECORD_SIZE}x")
        self._times: dict[int, int] = {}
        self._held: list[Placed] = []

    @property
    def waiting(self) -> int:
        """Number of records that wait for earlier records."""
        return len(self._held)

    def feed(self, step: RingStep) -> list[Placed]:
        """Return, in order, the records that no missing record can precede."""
        placed, self._held = self._held, []
        for stream, data in step.parts:
            now = self._times.get(stream, 0)
            for record in self._record.iter_unpack(data):
                if record[0] > now and record[3] not in TIMELESS:
                    now = record[0]
                placed.append((now, stream, record))
            self._times[stream] = now
        placed.sort(key=_time_of)
        if len(placed) <= _MOST_HELD:
            # The records STACK, PLACE, and THREAD of a stack have the same time, so
            # they stay together.
            complete = bisect_right(placed, step.complete, key=_time_of)
            self._held = placed[complete:]
            del placed[complete:]
        return placed

    def rest(self) -> list[Placed]:
        """Return the records that still wait; call this after the last step."""
        return self.feed(RingStep(MAX_TICKS, []))
