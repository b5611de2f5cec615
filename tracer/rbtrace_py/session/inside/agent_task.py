"""Code that the agent of a process runs while we listen."""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
import time
from contextlib import suppress

from rbtrace_py.agent.client import Agent, AgentError
from rbtrace_py.agent.protocol import BrokenAgent, Channel, MalformedAnswer, Map
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process

Record = tuple[bytes, ...]
GAP: Record = ()
"""Replaces records that may be missing: the code's time limit ended, and it was run
again. Its events in between, and its unwritten records, are unknown."""

MAX_FIELDS = 256
MAX_FIELD = 1 << 16
MAX_RECORD = 1 << 20
"""Maximum bytes of all fields of a record."""
_WAITING_BYTES = 8 << 20
_LIMIT_MS = 3_600_000
_WAITING = 4096
_GRACE = 10
_SLICE = 0.02
# In a method, its local variables do not become top-level variables of the program.
_ALONE = """
::Module.new do
  def self.run
    %s
  end
end.run
"""
_STOP = "Thread.list.each {{ |t| t.thread_variable_get({})&.push(nil) }}"


def has_other_ractors(hello: Map) -> bool:
    """Return whether the agent's hello reports Ractors besides the main one."""
    ractors = hello.get("ractors")
    return isinstance(ractors, int) and ractors > 1


class Records:
    """Parses records: a number of fields, and the length and bytes of each field."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Record]:
        """Return the records that are complete now; raise BrokenAgent if malformed."""
        self._data += data
        found = []
        while (record := self._next()) is not None:
            found.append(record)
        return found

    def _next(self) -> Record | None:
        at, fields = 4, []
        if (count := self._number(0, MAX_FIELDS)) is None:
            return None
        for _ in range(count):
            if (size := self._number(at, MAX_FIELD)) is None:
                return None
            at += 4 + size
            if at > MAX_RECORD:
                raise MalformedAnswer("a record that is too long")
            if at > len(self._data):
                return None
            fields.append(bytes(self._data[at - size : at]))
        del self._data[:at]
        return tuple(fields)

    def _number(self, at: int, most: int) -> int | None:
        if at + 4 > len(self._data):
            return None
        number = int.from_bytes(self._data[at : at + 4], "little")
        if number > most:
            raise MalformedAnswer("a malformed record")
        return number


class AgentTask(Closing):
    """Runs code in a process, and receives the records that it writes.

    The code writes to the IO in its thread's variable ``:rbtrace_stdout``; $stdout
    still belongs to the program. The first record reports that the code has started. A
    run lasts for at most one hour. The first record of each later run becomes GAP. When
    we close the task or are killed, the agent kills the code's thread. The code must
    then undo its effects (with ``Tracepoint::Agent.undoing``, so that they are undone
    in children, too). In the code, ``%(queue)s`` is a symbol of a thread variable, in
    which the code stores a queue. When the code takes nil from the queue, it must
    write all remaining records and end.

    Args:
        process: The process.
        code: The Ruby code.
        seconds: Time limit for its start.

    Attributes:
        first: The first record.
        ended: Why no more records follow; None while the code runs, and after a normal
            end.
        has_other_ractors: True if there were other Ractors at the start or the end.

    Raises:
        BrokenAgent: The code does not start.
        RbtraceError: As ``Agent`` raises.
    """

    def __init__(self, process: Process, code: str, seconds: float = _GRACE) -> None:
        self.ended: RbtraceError | None = None
        self.first: Record = ()
        self.pid = process.pid
        self._process = process
        self._variable = f":rbtrace_{secrets.token_hex(8)}"
        self._code = _ALONE % (code % {"queue": self._variable})
        self._records: queue.Queue[Record] = queue.Queue(_WAITING)
        # Byte counts: each is written by only one thread.
        self._put_bytes = self._fetched_bytes = 0
        self._is_closed = threading.Event()
        self._has_begun = threading.Event()
        self._is_beginning = True
        self._agent = Agent(process)
        self.has_other_ractors = has_other_ractors(self._agent.hello)
        # Ends a wait of the other thread, which closing the agent does not.
        self._socket = socket.socket(fileno=os.dup(self._agent.fileno()))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._has_begun.wait(seconds) or self.ended is not None:
            self.close()
            raise self.ended or BrokenAgent(
                f"process {process.pid} did not run the agent task"
            )

    @property
    def is_over(self) -> bool:
        """True if no more records follow."""
        return not self._thread.is_alive()

    def fetch(self, seconds: float) -> list[Record]:
        """Return new records; wait up to ``seconds`` for the first."""
        found: list[Record] = []
        with suppress(queue.Empty):
            found.append(self._records.get(timeout=max(seconds, 0.001)))
            while len(found) < _WAITING:
                found.append(self._records.get_nowait())
        self._fetched_bytes += sum(map(_size, found))
        return found

    def finish(self, seconds: float = _GRACE) -> list[Record]:
        """End the code normally, and return the remaining records."""
        found: list[Record] = []
        if not self._thread.is_alive():
            return self.fetch(0)
        code = _STOP.format(self._variable)
        deadline = time.monotonic() + seconds
        try:
            with Agent(self._process) as agent:
                self.has_other_ractors |= has_other_ractors(agent.hello)
                agent.call("eval", {"code": code}, seconds)
            while self._thread.is_alive() and time.monotonic() < deadline:
                found += self.fetch(_SLICE)
                if sum(map(_size, found)) > 2 * _WAITING_BYTES:
                    raise MalformedAnswer("endless records")
        except RbtraceError as error:
            self.ended = self.ended or error
        return found + self.fetch(0)

    def close(self) -> None:
        """End the code; may be called twice."""
        self._is_closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_GRACE)
        self._socket.close()
        self._agent.close()

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set() and not self._has_ended():
                pass
        except RbtraceError as error:
            self.ended = error
        self._has_begun.set()

    def _has_ended(self) -> bool:
        """Run the code; return False if only its time limit ended, so it runs again."""
        records = Records()
        self._is_beginning = True

        def take(data: bytes) -> None:
            for record in records.feed(data):
                self._put(record)

        arguments: Map = {
            "code": self._code,
            "limit_ms": _LIMIT_MS,
            "redirect": False,
        }
        seconds = _LIMIT_MS / 1000 + _GRACE
        try:
            self._agent.call("eval", arguments, seconds, {Channel.STDOUT: take})
        except AgentError as error:
            if error.code != "time":
                raise
            return False
        return True

    def _put(self, record: Record) -> None:
        if self._is_beginning:
            self._is_beginning = False
            if not self._has_begun.is_set():
                self.first = record
                self._has_begun.set()
                return
            record = GAP
        while not self._is_closed.is_set():
            # If records are not fetched, the code waits too, and counts dropped events.
            if self._put_bytes - self._fetched_bytes > _WAITING_BYTES:
                time.sleep(_SLICE)
                continue
            with suppress(queue.Full):
                self._records.put(record, timeout=0.1)
                self._put_bytes += _size(record)
                return


def _size(record: Record) -> int:
    return sum(map(len, record))
