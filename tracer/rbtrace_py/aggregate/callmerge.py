"""Records of several streams, put into the order in which they happened.

In mode slow records come late, and only those of one step are in order.
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
"""When it happened (ticks, never less than the stream's one before), its stream, the
record."""
_MOST_HELD = 1 << 21
"""Records that wait for earlier ones; a process that lies may never have those."""
_time_of = itemgetter(0)


class CallMerge:
    """Orders a process's records; record_size: bytes of one, with what is unknown."""

    def __init__(self, record_size: int = CALL_RECORD_SIZE) -> None:
        self._record = struct.Struct(f"<QIHBB{record_size - CALL_RECORD_SIZE}x")
        self._times: dict[int, int] = {}
        self._held: list[Placed] = []

    @property
    def waiting(self) -> int:
        """Records that wait for earlier ones."""
        return len(self._held)

    def feed(self, step: RingStep) -> list[Placed]:
        """Return those before which none is missing any more, in order."""
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
            # A triple that tells of a stack has one time, so it stays whole.
            complete = bisect_right(placed, step.complete, key=_time_of)
            self._held = placed[complete:]
            del placed[complete:]
        return placed

    def rest(self) -> list[Placed]:
        """Return those that still wait: no more comes."""
        return self.feed(RingStep(MAX_TICKS, []))
