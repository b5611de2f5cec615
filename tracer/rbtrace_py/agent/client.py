"""A connection to the agent in a process: requests and answers.

Each request has one deadline for its whole answer. A signal that asks the command to
end brings the deadline forward, and so does the end of a session.
"""

from __future__ import annotations

import array
import errno
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from rbtrace_py.agent import protocol
from rbtrace_py.agent.filter_check import check_filters
from rbtrace_py.agent.place import connect
from rbtrace_py.agent.proof import denied, prove
from rbtrace_py.agent.protocol import (
    SMALL,
    BrokenAgent,
    Channel,
    FrameType,
    Head,
    MalformedAnswer,
    Map,
    bound_of,
)
from rbtrace_py.errors import TASKS_HINT, NotPermitted, RbtraceError
from rbtrace_py.linux import stop_signal
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process, gone, parse_stat
from rbtrace_py.linux.text import safe_text

Sinks = Mapping[Channel, Callable[[bytes], None]]
"""Receivers of the bytes by channel; the agent must not use other channels."""

FRAME_SECONDS = 10
HELLO_SECONDS = 10
_STOP_SECONDS = 5
"""Seconds that an exchange may last after a signal that asks the command to end."""
_SLICE_SECONDS = 0.5
_ENDING_SECONDS = 1.0
"""Seconds that an ending process may live after its agent closed the connection."""
_STOPPED_SECONDS = 0.5
"""Seconds before a stopped process is reported."""
_MESSAGE_LIMIT = 4096
_MOST_FILES = 2
"""Descriptors that come with a reply (to ``arm``)."""
_MOST_EVENTS = 4
"""Maximum events per connection: ``exit``, and events of later agents."""
_FILES_ROOM = socket.CMSG_SPACE(_MOST_FILES * array.array("i").itemsize)
_DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


class AgentError(RbtraceError):
    """The agent refused a request.

    Attributes:
        code: The code in docs/agent/protocol.md.
        message: The agent's reason, safe to print.
        reply: The whole answer, not safe to print.
    """

    def __init__(self, pid: int, reply: Map) -> None:
        self.code = str(reply.get("code"))
        self.reply = reply
        self.message = safe_text(str(reply.get("message")).encode(), _MESSAGE_LIMIT)
        hint = ""
        if self.code == "busy":
            hint = f"End that session first, or end both: rbtrace-py detach {pid} --yes"
        elif self.code == "untested":
            hint = (
                "Set RBTRACE_UNTESTED_RUBY=1 to arm it anyway: it disarms itself"
                " if what it reads contradicts Ruby"
            )
        elif self.code == "system" and reply.get("errno") == errno.EFBIG:
            hint = (
                "Raise its file size limit (RLIMIT_FSIZE, ulimit -f), which applies"
                f" to the agent's memory: prlimit --pid {pid} --fsize=unlimited"
            )
        elif self.code == "system" and reply.get("errno") == errno.EAGAIN:
            hint = TASKS_HINT
        elif self.code == "system" and reply.get("errno") in _DENIED:
            hint = (
                "Its filter of system calls (seccomp) may forbid memfd_create, in which"
                " calls are counted: use what needs no agent (stacks, top, dump)"
            )
        super().__init__(f"process {pid}: {self.message}", hint)


class AnotherProgram(BrokenAgent):
    """The process has executed another program, which ended its agent."""


class _Ended(Exception):
    """The other end closed the connection."""


class Agent(Closing):
    """A connection to the agent of ``process``.

    Each command is checked beforehand (``check_filters``).

    Args:
        process: The process.
        address: Address of the text for our proof, if it is known. The proof is then
            sent with the first request, because the agent may wait long for the GVL
            before each request.
        needs_thread: As in ``connect``.

    Attributes:
        hello: The agent's self-description, sent after our proof.
        events: The received events, in order.
        event_bound: Bound of each event.

    Raises:
        Refused, NoAgent, NotPermitted, NoSuchTarget: As in ``connect``.
        AgentError: The agent refused the connection.
        BrokenAgent: The agent does not answer.
        MalformedAnswer: The answer is malformed, or ``address`` is wrong.
    """

    def __init__(
        self, process: Process, address: int | None = None, needs_thread: bool = True
    ) -> None:
        self._process = process
        self._program = process.program
        self._number = 0
        self._is_sending = False
        self._is_cancelled = False
        self._began = 0.0
        self._ends = math.inf
        self._heard = 0
        self._files: list[int] = []
        self._reply_bound = self.event_bound = SMALL
        self.events: list[Map] = []
        self._socket = connect(process, needs_thread)
        try:
            self._check_running()
            self.hello = self._greet(address)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()
        for fd in self.take_files():
            os.close(fd)

    def fileno(self) -> int:
        """Return the descriptor to wait on for events of the agent."""
        return self._socket.fileno()

    def take_files(self) -> list[int]:
        """Return the descriptors of the last reply; the caller must close them."""
        files, self._files = self._files, []
        return files

    def listen(self) -> bool:
        """Read the next event; return False if the agent closed the connection."""
        try:
            self._answer(self._deadline(FRAME_SECONDS), {}, until_event=True)
        except _Ended:
            return False
        return True

    def call(
        self,
        command: str,
        arguments: Map | None = None,
        seconds: float = HELLO_SECONDS,
        sinks: Sinks | None = None,
    ) -> Map:
        """Send a command and return the reply.

        Args:
            command: Name of the command.
            arguments: Its arguments.
            seconds: Time limit.
            sinks: Receivers of the data that arrives before the reply.

        Raises:
            AgentError: The agent refused the command.
            BrokenAgent: The agent does not answer.
            NoSuchTarget: The process has ended.
        """
        check_filters(self._process, command)
        try:
            return self._call(command, arguments or {}, seconds, sinks or {})
        except _Ended:
            raise self.ended() from None

    def end_within(self, seconds: float) -> None:
        """Set one deadline for all further requests."""
        self._ends = min(self._ends, time.monotonic() + seconds)

    def cancel(self) -> None:
        """Ask the agent to cancel the current request; signal handlers may call this.

        The answer is then AgentError ``cancelled``, or a reply that was already sent.
        """
        self._is_cancelled = True
        if not self._is_sending:
            # If the frame does not fit into the buffer now, it would be useless.
            with suppress(OSError):
                frame = protocol.pack_cancel(self._number)
                self._socket.send(frame, socket.MSG_DONTWAIT)

    def _greet(self, address: int | None) -> Map:
        arguments = {"magic": protocol.MAGIC, "versions": [protocol.VERSION]}
        answer, ahead = None, b""
        try:
            if address is not None:
                answer = prove(self._process, address)
                proof: Map = {"command": "prove", "answer": answer}
                ahead = protocol.pack_request(self._number + 2, proof)
            offer = self._call("hello", arguments, HELLO_SECONDS, {}, ahead)
            if offer.get("version") != protocol.VERSION:
                raise BrokenAgent("the agent uses another version of the protocol")
            if ahead:
                if offer.get("address") != address:
                    raise MalformedAnswer("the address of another text")
                self._number += 1
                return self._answer(self._deadline(HELLO_SECONDS), {})
            answer = prove(self._process, offer.get("address"))
            return self._call("prove", {"answer": answer}, HELLO_SECONDS, {})
        except AgentError as error:
            if error.code != "denied":
                raise
            raise denied(self._process, answer is not None) from None
        except _Ended:
            # If the process exits normally, its agent ends first.
            if self._process.is_ending() or self._process.wait(_ENDING_SECONDS):
                raise gone(self._process.pid) from None
            raise NotPermitted(
                f"the agent in process {self._process.pid} hung up",
                "Run as its own user or as root, in its user namespace",
            ) from None

    def _call(
        self,
        command: str,
        arguments: Map,
        seconds: float,
        sinks: Sinks,
        ahead: bytes = b"",
    ) -> Map:
        """Send a request. ``ahead`` is the next one, independent of the reply."""
        self._number += 1
        self._reply_bound = bound_of(command)
        data = protocol.pack_request(self._number, {"command": command, **arguments})
        deadline = self._deadline(seconds)
        self._is_cancelled, self._is_sending = False, True
        self._send(data + ahead, deadline)
        self._is_sending = False
        if self._is_cancelled:
            self.cancel()
        return self._answer(deadline, sinks)

    def _deadline(self, seconds: float) -> float:
        """Return the deadline of an exchange that begins now."""
        self._began = time.monotonic()
        return min(self._began + seconds, self._ends)

    def _answer(self, deadline: float, sinks: Sinks, until_event: bool = False) -> Map:
        """Return the due reply, or the next event without a request."""
        long = {self._number: bytearray(), 0: bytearray()}
        bounds = {self._number: self._reply_bound, 0: self.event_bound}
        while True:
            head, payload = self._frame(deadline)
            is_error = head.type is FrameType.ERROR
            of_nobody = is_error or head.type is FrameType.EVENT or _is_map(head)
            if head.request != self._number and not (of_nobody and head.request == 0):
                raise MalformedAnswer("an answer to another request")
            if head.type is FrameType.DATA:
                size = bounds[head.request].size
                self._process_data(head, payload, long[head.request], size, sinks)
                continue
            data = long[head.request] if head.flags else payload
            bound = bounds[head.request]
            is_data = bound.is_data or is_error
            found = protocol.decode_map(data, bound.values, is_data)
            long[head.request].clear()
            if is_error:
                raise AgentError(self._process.pid, found)
            if head.type is FrameType.EVENT:
                self._hear(found)
            if (head.type is FrameType.EVENT) is until_event:
                return found

    def _hear(self, event: Map) -> None:
        self._heard += 1
        if self._heard > _MOST_EVENTS:
            raise MalformedAnswer("too many events")
        self.events.append(event)

    def _process_data(
        self, head: Head, payload: bytes, long: bytearray, size: int, sinks: Sinks
    ) -> None:
        """Process a DATA frame; ``size`` is the maximum length of the map ``long``."""
        channel = Channel(head.flags)
        if channel is Channel.MAP:
            if len(long) + len(payload) > size:
                raise MalformedAnswer(f"longer than {size} bytes")
            long += payload
            return
        if channel not in sinks:
            raise MalformedAnswer("unrequested data")
        sinks[channel](payload)

    def _frame(self, deadline: float) -> tuple[Head, bytes]:
        first = self._receive(protocol.HEAD_SIZE, deadline)
        ends = min(deadline, time.monotonic() + FRAME_SECONDS)
        first += self._receive_all(protocol.HEAD_SIZE - len(first), ends)
        head = protocol.parse_head(first)
        return head, self._receive_all(head.length, ends)

    def _receive_all(self, size: int, deadline: float) -> bytes:
        pieces = []
        while size:
            pieces.append(self._receive(size, deadline))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _receive(self, size: int, deadline: float) -> bytes:
        """Receive at least one byte, at most ``size``."""
        while True:
            self._wait_until(deadline)
            try:
                data = self._receive_with_files(size)
            except TimeoutError:
                continue
            except ConnectionError:
                raise _Ended from None
            if not data:
                raise _Ended
            return data

    def _receive_with_files(self, size: int) -> bytes:
        data, controls, _, _ = self._socket.recvmsg(
            size, _FILES_ROOM, socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, rights in controls:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files = array.array("i")
                files.frombytes(rights[: len(rights) // 4 * 4])
                self._files += files
        if len(self._files) > _MOST_FILES:
            raise MalformedAnswer("unrequested file descriptors")
        return data

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait_until(deadline)
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                continue
            except ConnectionError:
                # Data that it sent before closing can still be read.
                return

    def _wait_until(self, deadline: float) -> None:
        """Set the socket's timeout to a slice of the time; raise after the deadline."""
        ends = min(deadline, stop_signal.limit(self._began, _STOP_SECONDS))
        left = ends - time.monotonic()
        if left <= 0:
            raise self._silent()
        # A signal just before the wait does not interrupt it.
        self._socket.settimeout(min(left, _SLICE_SECONDS))

    def _check_running(self) -> None:
        """Raise BrokenAgent if the process is stopped and cannot answer."""
        deadline = time.monotonic() + _STOPPED_SECONDS
        while _is_stopped(self._process, "T"):
            if time.monotonic() > deadline:
                raise self._silent()
            self._process.wait(0.01)

    def _silent(self) -> RbtraceError:
        process = self._process
        if not process.alive():
            return gone(process.pid)
        if _is_stopped(process):
            hint = f"Continue it, as it is stopped: kill -CONT {process.pid}"
        else:
            hint = (
                "Try again: it may be in a C function that holds the GVL, or frozen"
                " (docker pause)"
            )
        return BrokenAgent(f"the agent in process {process.pid} does not answer", hint)

    def ended(self) -> RbtraceError:
        """Return why the connection ended: NoSuchTarget if the process has ended."""
        process = self._process
        hung_up = f"the agent in process {process.pid} hung up"
        if not process.is_ending() and process.program not in (self._program, b""):
            return AnotherProgram(f"{hung_up}: it now runs another program")
        # If the process exits normally, its agent ends first.
        if process.is_ending() or process.wait(_ENDING_SECONDS):
            return gone(process.pid)
        return BrokenAgent(hung_up)


def _is_stopped(process: Process, states: str = "Tt") -> bool:
    """Return whether the process is stopped by a signal (T) or a tracer (t)."""
    return parse_stat(process.read("stat")).state in states


def _is_map(head: Head) -> bool:
    return head.type is FrameType.DATA and head.flags == Channel.MAP
