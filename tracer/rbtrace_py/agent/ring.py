"""The records of all streams, as bytes, in order (docs/agent/memory.md, "Records").

The GVL puts all events of a process into one order. Each record is published before the
next one is made, on any thread. The published records are therefore complete up to the
newest record that was published a moment earlier.
"""

from __future__ import annotations

from itertools import zip_longest
from operator import ne

from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.agent.shared import SharedMemory
from rbtrace_py.model.calls import KIND_AT, MAX_TICKS, TIMELESS, RingStep

AT_ONCE = 16_384
"""Approximate maximum number of records per step, of all streams."""
_LEAST = 64
"""Minimum limit of records per stream in a step, for any number of streams."""
_TIMELESS = bytes(TIMELESS)


class Ring:
    """Reads a memory's rings from the beginning, each record once.

    Attributes:
        count: Number of records read so far.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._tails: list[int] = []
        self._times: list[int] = []
        self._is_open = False
        self.count = 0

    def step(self, most: int = AT_ONCE) -> RingStep | None:
        """Return about ``most`` new records; None if there are none.

        If the previous step was incomplete, a step without records completes it.

        Raises:
            BrokenAgent: The published numbers are impossible.
        """
        first = self._published()
        if first == self._tails:
            is_open, self._is_open = self._is_open, False
            return RingStep(MAX_TICKS, []) if is_open else None
        # All events before those seen in ``first`` are published by now.
        last = self._published()
        looks = zip_longest(self._tails, first, last, fillvalue=0)
        if any(not tail <= seen <= now for tail, seen, now in looks):
            raise BrokenAgent("the agent took back published records")
        self._is_open = True
        waiting = sum(map(ne, last, self._tails))
        return self._read_records(first, last, max(_LEAST, most // waiting))

    def waiting(self) -> int:
        """Return the number of records to read, at most the capacity of the rings."""
        found = 0
        for stream in self._memory.streams():
            tail = self._tails[stream.index] if stream.index < len(self._tails) else 0
            found += max(0, stream.published - tail)
        header = self._memory.header
        return min(found, header.streams.capacity * header.ring_records)

    def dropped(self) -> int:
        """Return the number of dropped events. LOST records cover all but the last."""
        return sum(stream.dropped for stream in self._memory.streams())

    def _published(self) -> list[int]:
        streams = self._memory.counters().streams
        added = max(0, streams - len(self._tails))
        self._tails += [0] * added
        self._times += [0] * added
        return [self._memory.published(s) for s in range(len(self._tails))]

    def _read_records(self, first: list[int], last: list[int], room: int) -> RingStep:
        """Read all records up to ``last``, but at most ``room`` per stream."""
        parts = []
        cut, seen = [], [0]
        for stream, end in enumerate(last):
            tail = self._tails[stream]
            if end == tail:
                continue
            if end - tail > self._memory.header.ring_records:
                raise BrokenAgent(f"the agent published {end - tail} records at once")
            count = min(end - tail, room)
            data = self._memory.records(stream, tail, count)
            if stream < len(first) and first[stream] > tail:
                seen.append(self._time(stream, data, first[stream] - tail))
            self._times[stream] = self._time(stream, data, count)
            if count < end - tail:
                cut.append(self._times[stream])
            parts.append((stream, data))
            self._tails[stream] += count
            self._memory.set_tail(stream, self._tails[stream])
            self.count += count
        return RingStep(min(cut, default=max(seen)), parts)

    def _time(self, stream: int, data: bytes, count: int) -> int:
        """Return the time of the last timed record among the first ``count``."""
        size = self._memory.record_size
        kinds = data[KIND_AT : count * size : size]
        at = len(kinds.rstrip(_TIMELESS)) - 1
        if at < 0:
            return self._times[stream]
        return int.from_bytes(data[at * size : at * size + 8], "little")
