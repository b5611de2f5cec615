"""The records of all streams, as they come, in the order in which they happened.

the GVL puts all of a process's events into one order, and a record is published
before the next one is made, on whichever thread. In mode slow records come late, and
only those of one step are in order.
"""

from __future__ import annotations

from operator import itemgetter

from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import SharedMemory
from rbtrace_py.model.calls import CallKind, CallRecord

AT_ONCE = 16_384
"""Records that a step takes about at most, of all streams."""
_LEAST = 512
_TIMELESS = (CallKind.PLACE, CallKind.THREAD, CallKind.TEXT)
"""Their time is something else; they stand behind STACK, and behind an entry."""

Placed = tuple[int, int, CallRecord]
"""When it happened (ticks, never less than the one before), its stream, the record."""


class Ring:
    """Reads a memory's rings from their beginning; each record once.

    count: records read so far
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._tails: list[int] = []
        self._times: list[int] = []
        self.count = 0

    def step(self) -> list[Placed]:
        """Records that have come; empty if there are none at the moment.

        Raises BrokenAgent if what is published cannot be.
        """
        streams = self._memory.counters().streams
        added = streams - len(self._tails)
        self._tails += [0] * added
        self._times += [0] * added
        first = [self._memory.published(s) for s in range(streams)]
        waiting = [s for s in range(streams) if first[s] != self._tails[s]]
        if not waiting:
            return []
        # All that is earlier than what was seen now is published by then.
        last = {s: self._memory.published(s) for s in range(streams)}
        if any(not self._tails[s] <= first[s] <= last[s] for s in range(streams)):
            raise BrokenAgent("the agent took back published records")
        room = max(_LEAST, AT_ONCE // len(waiting))
        found = {s: self._read(s, last[s], room) for s in range(streams)}
        until = self._horizon(found, first, last)
        return self._take(found, until)

    def waiting(self) -> int:
        """Records that are there to be read; at most what the rings hold."""
        found = 0
        for stream in self._memory.streams():
            tail = self._tails[stream.index] if stream.index < len(self._tails) else 0
            found += max(0, stream.published - tail)
        header = self._memory.header
        return min(found, header.streams.capacity * header.ring_records)

    def dropped(self) -> int:
        """Events that did not fit, in all; LOST records tell of all but the last."""
        return sum(stream.dropped for stream in self._memory.streams())

    def _read(self, stream: int, last: int, room: int) -> list[Placed]:
        tail = self._tails[stream]
        if not 0 <= last - tail <= self._memory.header.ring_records:
            raise BrokenAgent(f"the agent published {last - tail} records at once")
        now = self._times[stream]
        placed = []
        for record in self._memory.records(stream, tail, min(room, last - tail)):
            if record[0] > now and record[3] not in _TIMELESS:
                now = record[0]
            placed.append((now, stream, record))
        return placed

    def _horizon(
        self, found: dict[int, list[Placed]], first: list[int], last: dict[int, int]
    ) -> int:
        """Until when nothing is missing: what comes later comes in another step."""
        cut = [
            placed[-1][0]
            for stream, placed in found.items()
            if placed and len(placed) < last[stream] - self._tails[stream]
        ]
        if cut:
            return min(cut)
        seen = (
            found[stream][count - self._tails[stream] - 1][0]
            for stream, count in enumerate(first)
            if count > self._tails[stream]
        )
        return max(seen)

    def _take(self, found: dict[int, list[Placed]], until: int) -> list[Placed]:
        taken: list[Placed] = []
        for stream, placed in found.items():
            count = len(placed)
            while count and placed[count - 1][0] > until:
                count -= 1
            if count:
                # A triple that tells of a stack has one time, so it stays whole.
                taken += placed[:count]
                self._times[stream] = placed[count - 1][0]
                self._tails[stream] += count
                self.count += count
                self._memory.set_tail(stream, self._tails[stream])
        if len(found) > 1:
            taken.sort(key=itemgetter(0))
        return taken
