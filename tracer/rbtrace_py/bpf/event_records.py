"""Events that ``programs/trace.c`` writes into a ring buffer, one record per hit."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import EVENT_RECORD, MAX_OPERANDS
from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.compiled_filter import CompiledFilter
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.probe_engine import Engine
from rbtrace_py.bpf.ringbuf import RingBuffer
from rbtrace_py.bpf.slots import EMPTY_SLOT, Slot, operand_value
from rbtrace_py.bpf.tracked_pids import TrackedPids
from rbtrace_py.errors import UsageError
from rbtrace_py.linux.clocks import wall_offset
from rbtrace_py.linux.closing import Closing
from rbtrace_py.model.events import UNREADABLE, Event, RubyContext, Value
from rbtrace_py.model.probes import MAX_SLOTS, Probe


class EventRecords(Closing):
    """The events of one engine.

    Attributes:
        wall_offset: Times of events minus CLOCK_MONOTONIC, in nanoseconds.
    """

    def __init__(self, string_size: int, ring_size: int) -> None:
        """Create a reader without an engine.

        Args:
            string_size: Maximum size of a string, with its NUL, in bytes.
            ring_size: Size of the ring buffer in bytes, a power of two.
        """
        self._string_size = string_size
        self._ring_size = ring_size
        self._filter: CompiledFilter | None = None
        self._echo = 0
        self._texts = 0
        self._engine: Engine | None = None
        self._ring: RingBuffer | None = None
        self.wall_offset = wall_offset()

    def plan(
        self, probes: Sequence[Probe], may_grow: bool, filter_: CompiledFilter | None
    ) -> None:
        """Choose the slots, before the engine is made.

        Args:
            probes: The first probes.
            may_grow: True if other probes may follow.
            filter_: The filter, if any.

        Raises:
            UsageError: The operands of the probes and the filter need too many slots.
        """
        self._filter = filter_
        for probe in probes:
            self._echo = max(self._echo, min(len(probe.operands), MAX_OPERANDS))
            texts = sum(operand.type.is_text for operand in probe.operands)
            self._texts = max(self._texts, texts)
        if may_grow:
            # Later probes may have more.
            self._echo = self._texts = MAX_OPERANDS
        number = len(filter_.operands) if filter_ else 0
        if self._echo + number > MAX_SLOTS:
            raise UsageError(
                f"the filter uses {number} arguments, but there"
                f" is space for {MAX_SLOTS - self._echo}",
                f"Use fewer in the filter: {self._echo} others are read"
                + (", the limit for one probe" if may_grow else ""),
            )

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the operands by slot; empty where probes have different ones."""
        names = self._filter.operands if self._filter else ()
        return ("",) * self._echo + names

    def make_engine(
        self,
        attacher: Attacher,
        tracked: TrackedPids | None,
        numbers: Mapping[str, int],
        shared: Mapping[str, Map] | None = None,
    ) -> Engine:
        """Make the engine that writes the events.

        Args:
            attacher: As for ``Engine``, like ``tracked`` and ``shared``.
            tracked: The processes whose hits count.
            numbers: Numbers for AT_LOAD, without the sizes of a record.
            shared: Maps of another program.

        Raises:
            NotPermitted: The tracer lacks the rights to use BPF.
            BpfError: The program cannot be compiled, or a map cannot be made.
        """
        own = {
            "ECHO": self._echo,
            "TEXTS": self._texts,
            "TEXT": self._string_size,
            "RECORD_SIZE": self._at_texts + self._texts * self._string_size,
        }
        self._engine = Engine(
            attacher,
            tracked,
            "trace.c",
            {"ring": MapSpec(sys_.MAP_TYPE_RINGBUF, 0, 0, self._ring_size)},
            {"FILTER_BASE": self._echo} if self._filter else {},
            {**own, **numbers},
            self._filter,
            shared,
        )
        self._ring = RingBuffer(self._engine.program.maps["ring"])
        return self._engine

    @property
    def _at_texts(self) -> int:
        """Offset of the strings in a record."""
        return EVENT_RECORD.size + 8 * self._echo

    def slots(self, probe: Probe) -> tuple[Slot, ...]:
        """Return a probe's slots: its operands, then the filter's."""
        echo = [
            Slot(operand=index, is_text=operand.type.is_text)
            for index, operand in enumerate(probe.operands[: self._echo])
        ]
        if self._filter is None:
            return tuple(echo)
        empty = [EMPTY_SLOT] * (self._echo - len(echo))
        plain = [replace(slot, is_text=False) for slot in self._filter.slots(probe)]
        return (*echo, *empty, *plain)

    def wait(self, seconds: float) -> None:
        """Wait until there are events, or until ``seconds`` have passed."""
        assert self._ring is not None
        self._ring.wait(seconds)

    def read(self) -> Iterator[tuple[Event, RubyContext]]:
        """Yield the events since the last call."""
        assert self._ring is not None
        return map(self._event, self._ring.records())

    def _event(self, record: bytes) -> tuple[Event, RubyContext]:
        when, pid, tid, site, unreadable, texts, cuts, comm, thread, fiber = (
            EVENT_RECORD.unpack_from(record)
        )
        assert self._engine is not None
        probe = self._engine.requests[site].probe
        raw = struct.unpack_from(f"<{self._echo}Q", record, EVENT_RECORD.size)
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
                at += self._string_size
            values.append(value)
            truncated.append(cut)
        name = comm.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        time_ns = when + self.wall_offset
        event = Event(time_ns, pid, tid, name, probe, tuple(values), tuple(truncated))
        return event, RubyContext(thread, fiber)

    def _text(self, record: bytes, at: int) -> str:
        text = record[at : at + self._string_size].split(b"\0", 1)[0]
        return text.decode("utf-8", "surrogateescape")

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None
