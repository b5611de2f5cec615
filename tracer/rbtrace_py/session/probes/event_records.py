"""Records of events, as ``programs/trace.c`` writes them: what fits, what they say."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import MAX_OPERANDS
from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.probe_engine import Engine
from rbtrace_py.bpf.ringbuf import RingBuffer
from rbtrace_py.bpf.slots import EMPTY_SLOT, Slot, operand_value
from rbtrace_py.bpf.tracked_pids import TrackedPids
from rbtrace_py.errors import UsageError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.model.events import UNREADABLE, Event, Value
from rbtrace_py.model.probes import MAX_SLOTS, Probe
from rbtrace_py.session.probes.probe_filter import ProbeFilter
from rbtrace_py.session.probes.query import ProbeOptions

_HEADER = struct.Struct("<QIIIHHH6x16sQQ")


class RubyContext(NamedTuple):
    """What ran Ruby code: addresses of rb_thread_t and rb_fiber_t; 0: not known."""

    thread: int
    fiber: int


class EventRecords(Closing):
    """The records of one engine, and the ring buffer that they come by.

    options: of the session
    filter_: what passes, settled before the engine is made
    wall_offset: what events' times are ahead of CLOCK_MONOTONIC, in ns
    """

    def __init__(self, options: ProbeOptions, filter_: ProbeFilter) -> None:
        self._options = options
        self._filter = filter_
        self._echo = 0
        self._texts = 0
        self._engine: Engine | None = None
        self._ring: RingBuffer | None = None
        self.wall_offset = time.time_ns() - time.monotonic_ns()

    def plan(self, probes: Sequence[Probe], may_grow: bool) -> None:
        """Make room for the operands of ``probes``; of any others if it may grow.

        Raises UsageError if the filter does not fit beside them.
        """
        for probe in probes:
            self._echo = max(self._echo, min(len(probe.operands), MAX_OPERANDS))
            texts = sum(operand.type.is_text for operand in probe.operands)
            self._texts = max(self._texts, texts)
        if may_grow:
            # Later probes may have more.
            self._echo = self._texts = MAX_OPERANDS
        if self._echo + len(self._filter.operands) > MAX_SLOTS:
            raise UsageError(
                f"the filter uses {len(self._filter.operands)} arguments, but there"
                f" is space for {MAX_SLOTS - self._echo}",
                f"Use fewer in the filter: {self._echo} others are read"
                + (", the limit for one probe" if may_grow else ""),
            )

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the operands in the program's slots, as far as they are known."""
        return ("",) * self._echo + self._filter.operands

    def make_engine(
        self,
        attacher: Attacher,
        tracked: TrackedPids | None,
        numbers: Mapping[str, int],
        shared: Mapping[str, Map] | None = None,
    ) -> Engine:
        """Make the engine that writes them.

        numbers: of the program, beside those that say what a record has
        """
        own = {
            "ECHO": self._echo,
            "TEXTS": self._texts,
            "TEXT": self._options.string_size,
            "RECORD_SIZE": self._at_texts + self._texts * self._options.string_size,
        }
        ring = MapSpec(sys_.MAP_TYPE_RINGBUF, 0, 0, self._options.ring_size)
        self._engine = Engine(
            attacher,
            tracked,
            "trace.c",
            {"ring": ring},
            {"FILTER_BASE": self._echo} if self._filter.compiled else {},
            {**own, **numbers},
            self._filter.compiled,
            shared,
        )
        self._ring = RingBuffer(self._engine.program.maps["ring"])
        return self._engine

    @property
    def _at_texts(self) -> int:
        """Return where the strings of a record begin."""
        return _HEADER.size + 8 * self._echo

    def slots(self, probe: Probe) -> tuple[Slot, ...]:
        """Return a probe's slots: its operands, then the filter's."""
        echo = [
            Slot(operand=index, is_text=operand.type.is_text)
            for index, operand in enumerate(probe.operands[: self._echo])
        ]
        if self._filter.compiled is None:
            return tuple(echo)
        empty = [EMPTY_SLOT] * (self._echo - len(echo))
        plain = [replace(slot, is_text=False) for slot in self._filter.slots(probe)]
        return (*echo, *empty, *plain)

    def wait(self, seconds: float) -> None:
        """Wait until there are records, at most so long."""
        assert self._ring is not None
        self._ring.wait(seconds)

    def read(self) -> Iterator[tuple[Event, RubyContext]]:
        """Yield the events that came since the last call."""
        assert self._ring is not None
        return map(self._event, self._ring.records())

    def _event(self, record: bytes) -> tuple[Event, RubyContext]:
        when, pid, tid, site, unreadable, texts, cuts, comm, thread, fiber = (
            _HEADER.unpack_from(record)
        )
        assert self._engine is not None
        probe = self._engine.requests[site].probe
        raw = struct.unpack_from(f"<{self._echo}Q", record, _HEADER.size)
        at = self._at_texts
        values: list[Value] = []
        truncated = []
        for index, operand in enumerate(probe.operands[: self._echo]):
            value: Value
            cut = False
            text = operand.type.is_text and raw[index] != 0
            if text and texts >> index & 1:
                value, cut = self._text(record, at), bool(cuts >> index & 1)
            elif text or unreadable >> index & 1:
                value = UNREADABLE
            elif operand.type.is_text:
                value = None
            else:
                value = operand_value(raw[index], operand)
            if text:
                at += self._options.string_size
            values.append(value)
            truncated.append(cut)
        name = comm.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        time_ns = when + self.wall_offset
        event = Event(time_ns, pid, tid, name, probe, tuple(values), tuple(truncated))
        return event, RubyContext(thread, fiber)

    def _text(self, record: bytes, at: int) -> str:
        text = record[at : at + self._options.string_size].split(b"\0", 1)[0]
        return text.decode("utf-8", "surrogateescape")

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None
