"""``trace PID raise``: every exception as it is raised, from inside the process.

The agent runs our code, with a TracePoint of an event that costs nothing while the
program raises nothing. A thread that raises an exception only stores the object. The
agent's own thread formats the strings.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rbtrace_py.agent.client import AgentError
from rbtrace_py.agent.protocol import MalformedAnswer
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.model.events import RaiseEvent
from rbtrace_py.model.probes import Binary, Operand, OperandType, Probe
from rbtrace_py.session.event_session import EventSession
from rbtrace_py.session.inside.agent_task import GAP, AgentTask, Record
from rbtrace_py.session.methods.agent_session import AgentOptions, AgentSession
from rbtrace_py.session.probes.filters import evaluate, parse_filter
from rbtrace_py.session.targets.targets import Targets

MAX_BACKTRACE = 200
_WAITING = 10_000
_BATCH = 1 << 16
"""Bytes of queued records after which they are written."""
_DRAIN = 1
"""Seconds to send queued exceptions at the end; the rest counts as lost."""
_FIELDS = 8
_SLICE = 0.02
_MAX = (1 << 63) - 1
_HELD = b"held"
_FAILURES = AgentError, MalformedAnswer

_OPERANDS = (
    Operand("class", OperandType.STRING),
    Operand("message", OperandType.STRING),
    Operand("file", OperandType.STRING),
    Operand("line", OperandType.INTEGER),
    Operand("method", OperandType.STRING),
)
PROBE = Probe("rbtrace", "raise", Binary(0, 0, ""), (), _OPERANDS)
"""The probe of all exceptions; Ruby's own probe lacks message and method."""

CODE = """
lambda do |waiting, size, depth|
  own = Thread.current
  out = own.thread_variable_get(:rbtrace_stdout)
  queue = Queue.new
  lost = 0
  to_s = Exception.instance_method(:to_s)
  backtrace = Exception.instance_method(:backtrace)
  name = Module.instance_method(:name)
  nameless = Module.instance_method(:to_s)
  class_of = Kernel.instance_method(:class)
  text = lambda { |value| value.to_s.b.byteslice(0, size) }
  guarded = lambda do |method, error|
    method.bind(error).call
  rescue Exception
    nil
  end
  record = lambda do |fields|
    fields.map { |field| [field.bytesize].pack("V") << field }
          .unshift([fields.size].pack("V")).join
  end
  public = lambda { |place| !place.path.start_with?("<internal:") }
  tracer = TracePoint.new(:raise) do |point|
    thread = Thread.current
    next if thread.equal?(own) || ::Tracepoint::Agent.own?(thread)
    next lost += 1 if queue.size >= waiting
    now = Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond)
    # After a fork, Ruby 3.1 has the parent's in the child.
    id = Process.pid if thread.equal?(Thread.main)
    id ||= thread.respond_to?(:native_thread_id) ? thread.native_thread_id : 0
    # Part of Ruby itself is written in Ruby: of that it is where it was called.
    at = public.call(point) ? point : caller_locations(1, 16).find(&public) || point
    queue << [now, id, point.raised_exception, at.path, at.lineno, point.method_id]
  end
  deadline = nil
  clock = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
  finish = Object.new
  finish.define_singleton_method(:push) do |_|
    next if deadline
    tracer.disable
    deadline = clock.call + %(drain)d
    queue << nil
  end
  # Either of them ends it: we, and the agent when the process ends.
  [%(queue)s, :rbtrace_end].each { |key| own.thread_variable_set(key, finish) }
  undo = lambda do
    tracer.disable
    queue.clear
  end
  ::Tracepoint::Agent.undoing(undo) do
    tracer.enable
    hold = ::Tracepoint::Agent::Hold if defined?(::Tracepoint::Agent::Hold)
    out.write(record.call(["ready", hold && hold.on? ? "held" : ""]))
    hold.release if hold
    ready = "".b
    while (now, id, error, path, line, method = queue.pop)
      if deadline && clock.call > deadline
        lost += queue.size - 1
        queue.clear << nil
      end
      kind = class_of.bind(error).call
      fields = [now, id, lost, guarded.call(name, kind) || guarded.call(nameless, kind),
                guarded.call(to_s, error), path, line, method]
      fields.concat((guarded.call(backtrace, error) || []).first(depth))
      ready << record.call(fields.map(&text))
      # A write releases the GVL, and a busy program keeps it for 100 ms.
      next if ready.bytesize < %(batch)d && !queue.empty?
      out.write(ready)
      ready = "".b
    end
    out.write(ready)
  end
end.call(%(waiting)d, %(size)d, %(depth)d)
"""


@dataclass(frozen=True, slots=True)
class ExceptionOptions(AgentOptions):
    """Options of ``trace raise``.

    Attributes:
        string_size: Bytes to send of each string.
        backtrace: Send backtraces.
        filter: Filter on class, message, file, line, method, pid, and tid.
    """

    string_size: int = 128
    backtrace: bool = False
    filter: str | None = None


class Exceptions(AgentSession[AgentTask], EventSession[RaiseEvent]):
    """A session of exceptions, with the interface of ``Trace``.

    Raises:
        FilterError: The filter is invalid.
        NoAgent, NoSuchTarget, NotPermitted, AgentError, BrokenAgent: Tracing of a
            process fails when the session is entered.
    """

    words: tuple[str, ...] = ("raise",)

    def __init__(self, targets: Targets, options: ExceptionOptions) -> None:
        super().__init__(targets, options)
        self.options = options
        self.probes: Sequence[Probe] = [PROBE]
        self._lost: dict[AgentTask, int] = {}
        """Events that each task reports as lost; also holds tasks that have ended."""
        self._lost_before_gaps = 0
        self._seen = self._filtered = 0
        operands = {operand.name: operand for operand in _OPERANDS}
        text = options.filter
        self._filter = None if text is None else parse_filter(text, operands)
        self._last: deque[tuple[AgentTask, Record]] = deque()
        size = max(options.string_size, 16)
        depth = MAX_BACKTRACE if options.backtrace else 0
        self._code = CODE % {
            "waiting": _WAITING,
            "batch": _BATCH,
            "drain": _DRAIN,
            "size": size,
            "depth": depth,
            "queue": "%(queue)s",  # the task's own
        }

    def _start(self) -> None:
        self.start()
        self.notes.append("raise: from the agent, with a TracePoint")

    def _join(self, process: Process) -> None:
        task = AgentTask(process, self._code)
        self._lost[task] = 0
        self._add(process, task, _HELD in task.first)

    def events(self, seconds: float) -> Iterator[RaiseEvent]:
        """Yield new events; wait up to ``seconds`` for the first.

        The next call yields the events that the caller does not consume.
        """
        deadline = time.monotonic() + seconds
        while not self._last:
            self._fetch(min(seconds, _SLICE))
            if self.is_over or time.monotonic() >= deadline:
                break
        while self._last:
            yield from self._received(*self._last.popleft())

    def _fetch(self, seconds: float) -> None:
        """Fetch new records; release processes whose task is over."""
        share = seconds / max(len(self._live), 1)
        for process, task in list(self._live.items()):
            self._last += [(task, record) for record in task.fetch(share)]
            if task.is_over:
                self._end(process)
        if not self._live:
            time.sleep(seconds)

    def _end(self, process: Process) -> None:
        task = self._live[process]
        self._last += [(task, record) for record in task.finish()]
        task.close()
        self._release(process, task.ended)

    def _received(self, task: AgentTask, record: Record) -> Iterator[RaiseEvent]:
        """Yield the record's event; count a gap as one lost event."""
        if record == GAP:
            # The task counts from 0 again.
            self._lost_before_gaps += self._lost[task] + 1
            self._lost[task] = 0
            return
        event = self._event(task, record)
        if self._passes(event):
            yield event
        else:
            self._filtered += 1

    def _passes(self, event: RaiseEvent) -> bool:
        if self._filter is None:
            return True
        names = (operand.name for operand in _OPERANDS)
        values = dict(zip(names, event.values, strict=True))
        return evaluate(self._filter, {"pid": event.pid, "tid": event.tid, **values})

    def _event(self, task: AgentTask, record: Record) -> RaiseEvent:
        if len(record) < _FIELDS:
            raise MalformedAnswer("malformed exception record")
        when, tid, lost, class_, message, path, line, method, *trace = record
        self._lost[task] = _number(lost)
        self._seen += 1
        size = self.options.string_size
        texts = tuple(map(_text, (class_, message, path)))
        values = (*texts, _number(line), _text(method) or None)
        cut = tuple(len(text) >= size for text in (class_, message, path))
        return RaiseEvent(
            _number(when), task.pid, _number(tid), "", PROBE, values,
            (*cut, False, len(method) >= size), tuple(map(_text, trace)),
        )  # fmt: skip

    def finish(self) -> None:
        """Disable the TracePoints; earlier events can still be read."""
        for process in list(self._live):
            self._end(process)
        self._note_untraced()

    def drain(self) -> Iterator[RaiseEvent]:
        self.finish()
        yield from self.events(0.0)

    @property
    def failure(self) -> RbtraceError | None:
        """The error that ended our code in a process that lives on, or None."""
        failures = (task.ended for task in self._lost)
        return next((e for e in failures if isinstance(e, _FAILURES)), None)

    def result_counters(self) -> dict[str, int]:
        return {
            "seen": self._seen,
            "filtered": self._filtered,
            **self.unseen(self._seen),
            "other_ractors": sum(task.has_other_ractors for task in self._lost),
            "lost": self._lost_before_gaps + sum(self._lost.values()),
            "hung_up": self.hung_up,
        }

    def close(self) -> None:
        for task in self._live.values():
            task.close()
        self._live.clear()


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise MalformedAnswer("malformed number in an exception record")
    return min(int(text), _MAX)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
