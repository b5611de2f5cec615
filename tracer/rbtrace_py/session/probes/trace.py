"""Every hit, with its operands."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import MAX_OPERANDS, MAX_SLOTS, Counter
from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.maps import MapSpec
from rbtrace_py.bpf.ringbuf import RingBuffer
from rbtrace_py.errors import UsageError
from rbtrace_py.model.events import UNREADABLE, Event, Value
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.probes import select
from rbtrace_py.session.probes.engine import AttachRequest, Engine
from rbtrace_py.session.probes.group_reader import number_value
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.session import ProbeSession
from rbtrace_py.session.probes.slots import SlotPlan
from rbtrace_py.session.targets.targets import Targets

_HEADER = struct.Struct("<QIIIHHH6x16s")


class Trace(ProbeSession):
    """Events in the order the kernel saw them.

    ``events`` yields what has come; ``counters`` tells of what was lost.
    """

    command = "trace"

    def __init__(
        self,
        targets: Targets,
        words: Sequence[str],
        options: ProbeOptions | None = None,
    ) -> None:
        super().__init__(targets, words, options)
        self._echo = 0
        self._texts = 0
        self._ring: RingBuffer | None = None
        self._wall_offset = time.time_ns() - time.monotonic_ns()

    def plan(self, probes: Sequence[Probe]) -> None:
        self.filter.settle([p for w in self.words for p in select.pick(w, probes)])
        self.check_words(probes)
        for probe in self.picked(probes):
            self.filter.check(probe)
        if self._engines:
            return
        for probe in self.picked(probes):
            self._echo = max(self._echo, min(len(probe.operands), MAX_OPERANDS))
            texts = sum(operand.type.is_text for operand in probe.operands)
            self._texts = max(self._texts, texts)
        if self.may_grow:
            # Later probes may have more.
            self._echo = self._texts = MAX_OPERANDS
        if self._echo + len(self.filter.operands) > MAX_SLOTS:
            raise UsageError(
                f"the filter uses {len(self.filter.operands)} arguments, but trace"
                f" has space for {MAX_SLOTS - self._echo}",
                f"Use fewer in the filter: {self._echo} others are printed"
                + (", the limit for one probe" if self.may_grow else ""),
            )

    def make_engines(self, attacher: Attacher) -> None:
        numbers = {
            "ECHO": self._echo,
            "DURATIONS": self.durations_flag(("",) * self._echo + self.filter.operands),
            "TEXTS": self._texts,
            "TEXT": self.options.string_size,
            "RECORD_SIZE": self._at_texts + self._texts * self.options.string_size,
        }
        ring = MapSpec(sys_.MAP_TYPE_RINGBUF, 0, 0, self.options.ring_size)
        engine = Engine(
            attacher,
            self._tracked,
            "trace.c",
            {"ring": ring, **self.filter.maps()},
            {"FILTER_BASE": self._echo} if self.filter.is_set else {},
            numbers,
            self.filter.prelude(),
        )
        self._engines.append(engine)
        self.filter.fill(engine.program)
        self._ring = RingBuffer(engine.program.maps["ring"])

    @property
    def _at_texts(self) -> int:
        """Return where the strings of a record begin."""
        return _HEADER.size + 8 * self._echo

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        return [
            AttachRequest(probe, 0, self._slots(probe)) for probe in self.picked(probes)
        ]

    def _slots(self, probe: Probe) -> tuple[SlotPlan, ...]:
        echo = [
            SlotPlan(operand=index, is_text=operand.type.is_text)
            for index, operand in enumerate(probe.operands[: self._echo])
        ]
        if not self.filter.is_set:
            return tuple(echo)
        empty = [SlotPlan(operand=MAX_SLOTS)] * (self._echo - len(echo))
        plain = [replace(slot, is_text=False) for slot in self.filter.slots(probe)]
        return (*echo, *empty, *plain)

    def events(self, seconds: float) -> Iterator[Event]:
        """Return new events; waits up to ``seconds`` if there are none."""
        assert self._ring is not None
        self._ring.wait(seconds)
        for record in self._ring.records():
            yield self._event(record)

    def drain(self) -> Iterator[Event]:
        """Detach; yield what had come by then."""
        self.finish()
        yield from self.events(0.0)

    def _event(self, record: bytes) -> Event:
        when, pid, tid, site, unreadable, texts, cuts, comm = _HEADER.unpack_from(
            record
        )
        probe = self._engines[0].requests[site].probe
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
                value = number_value(raw[index], operand)
            if text:
                at += self.options.string_size
            values.append(value)
            truncated.append(cut)
        name = comm.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
        return Event(
            when + self._wall_offset,
            pid,
            tid,
            name,
            probe,
            tuple(values),
            tuple(truncated),
        )

    def _text(self, record: bytes, at: int) -> str:
        text = record[at : at + self.options.string_size].split(b"\0", 1)[0]
        return text.decode("utf-8", "surrogateescape")

    def result_counters(self) -> dict[str, int]:
        """``seen`` events written, and what was not (docs/formats)."""
        found = self.counters(Counter.SEEN, Counter.LOST)
        found.pop("no_room")
        return {**found, **self.children_hint(found["seen"], found)}

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        super().close()
