"""Loading of the agent into a process: its files, the loader code, and its answer."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rbtrace_py.agent.addresses import RubyAddresses
from rbtrace_py.agent.attempt import Step
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.files import placed
from rbtrace_py.agent.inject import LONGEST_POLL, Injection, NotAcknowledged, inject
from rbtrace_py.agent.keeper import Files
from rbtrace_py.agent.place import NoAgent, socket_places
from rbtrace_py.agent.proof import pid_seen_by
from rbtrace_py.agent.protocol import MalformedAnswer
from rbtrace_py.agent.refusal import check_program
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.backoff import Backoff
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.paths_in_root import open_directory_in_root
from rbtrace_py.linux.process import Process, gone
from rbtrace_py.linux.text import safe_text

_HERE = Path(__file__).parent
_LOADER, _AGENT = _HERE / "load.rb", _HERE / "source" / "agent.rb"
_PART = re.compile(rb'^require_relative "([a-z/]+)"$', re.MULTILINE)
_COMMENT = b"# frozen_string_literal: true\n"
"""The beginning of each part; Ruby honors it only at the head of a file."""
_BEGUN, _SAID = "begun", "said"
_DONE = re.compile("done(?: ([0-9]{1,20}))?")
_SHORTEST_POLL, _SLOWEST_POLL, _SLOWEST_GREETING = 0.001, 0.005, 0.1
"""Seconds."""

_CODE = (
    "::Thread.start('%s','%s',%d,<<'%s',defined?(::UNIXServer) ? nil : "
    "::Thread.start{begin;require'socket.so';rescue ::Exception;end}"
    "){|folder,socket,peer,text,library|begin;"
    '::Thread.current.priority=3;text=text.dup.force_encoding("UTF-8");path="#{folder}/agent.rb";'
    "::RubyVM::InstructionSequence.compile(text,path,path).eval"
    ".call(text,folder,socket,peer,library);rescue ::Exception;end}\n%s\n%s\n"
)
"""Code that runs in the context of a trap handler, which can start a thread but do
little else. Its errors must not reach the program. It contains the whole text of the
agent, because reading a file releases the GVL, which costs 0.1 s per busy thread.
Loading a library releases it too, so two threads load one library each at the same
time. The second waits for the first before it requires the same library: up to 3.1,
with -w, Ruby would print a warning about a circular require. The priority lets the
thread hold the GVL for longer than 0.1 s if the CPU is busy; it needs about 0.02 s."""
_END = "RBTRACE_PY_END"


class NotLoaded(RbtraceError):
    """The process began to load the agent, but failed."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded agent: its hello, and the time from the beginning to that in ns."""

    injection: Injection
    hello: dict[str, object]
    answer_ns: int


def agent_files(hook: bytes | None) -> Files:
    """Return the files to place: the hook, and names of files that the process creates.

    Args:
        hook: The shared object, or None for an agent without method events.
    """
    files: Files = {_BEGUN: None, _SAID: None}
    return files if hook is None else {**files, "agent_hook.so": hook}


def agent_text() -> str:
    """Return the loader and the agent as one text; raises RbtraceError."""
    try:
        return (_LOADER.read_bytes() + b"__END__\n" + _joined(_AGENT)).decode()
    except OSError as error:
        raise RbtraceError(
            f"a file of the agent is missing: {error.filename}: {error.strerror}",
            "Reinstall rbtrace-py",
        ) from error


def _joined(path: Path) -> bytes:
    """Return the agent as one file, with each part in place of its require."""

    def part(found: re.Match[bytes]) -> bytes:
        whole = (path.parent / f"{found[1].decode()}.rb").read_bytes()
        return whole.removeprefix(_COMMENT).strip()

    return _PART.sub(part, path.read_bytes())


def load_agent(
    process: Process,
    ruby: RubyAddresses,
    files: Files,
    limit: float,
    at: Step = lambda step: None,
) -> Loaded:
    """Load the agent into ``process``, or restart an agent that was stopped.

    Args:
        process: The process.
        ruby: Addresses in its Ruby.
        limit: Time limit in seconds for everything.
        limit: Seconds in all.
        at: Called at each step.

    Raises:
        NotLoaded: The process could not load the agent.
        RbtraceError: As ``inject`` and ``placed``.
    """
    began = time.monotonic_ns()
    deadline = time.monotonic() + limit
    text = agent_text()
    with (
        placed(process, files, socket_places(process)) as (folder, socket),
        LoaderLinks(process, folder, ruby.program) as said,
    ):
        at("placed")
        peer = pid_seen_by(process)
        code = (_CODE % (folder, socket, peer, _END, text, _END)).encode()
        injection = inject(process, ruby, code, said.has_begun, limit, at)
        at("acknowledged")
        try:
            address = said.await_end(deadline)
            at("loaded")
            hello = _greet(process, ruby.program, address, deadline)
        except RbtraceError:
            check_program(process, ruby.program)
            raise
        at("answered")
    return Loaded(injection, hello, time.monotonic_ns() - began)


@contextmanager
def alone(process: Process, deadline: float) -> Iterator[None]:
    """Lock a process, so that only one tracer at a time loads an agent into it.

    Only users who may trace the process can open its ``environ``, and thus take the
    lock (ptrace(2), PTRACE_MODE_READ). Raises RbtraceError at the deadline.
    """
    file = process.open("environ")
    backoff = Backoff(_SLOWEST_POLL, _SLOWEST_GREETING)
    try:
        while not _locked(file):
            if time.monotonic() > deadline:
                raise RbtraceError(
                    f"another tracer is attaching to process {process.pid}",
                    "Try again",
                )
            time.sleep(backoff.pause())
        yield
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _greet(
    process: Process, program: bytes, address: int | None, deadline: float
) -> dict[str, object]:
    """Return the agent's hello. Its socket exists by now.

    Args:
        process: The process.
        program: Its program, which must not change.
        address: Address of the text for the proof, if known.
        deadline: Latest time (``time.monotonic``) to connect.
    """
    backoff = Backoff(_SLOWEST_POLL, _SLOWEST_GREETING)
    while True:
        try:
            with Agent(process, address) as agent:
                return dict(agent.hello)
        except MalformedAnswer:
            # Another tracer, outside the pid namespace as we are, used our text first.
            if address is None:
                raise
            address = None
        except NoAgent:
            if time.monotonic() > deadline:
                raise
        _pause(process, program, backoff.pause())


class LoaderLinks(Closing):
    """The links that load.rb has created, which the process may have replaced."""

    def __init__(self, process: Process, folder: str, program: bytes) -> None:
        self._process = process
        self._program = program
        root = process.open("root", os.O_PATH | os.O_DIRECTORY)
        try:
            self._folder = open_directory_in_root(root, folder)
        except OSError as error:
            raise NotLoaded(
                f"the directory that process {process.pid} loads the agent from is"
                f" missing ({error.strerror})"
            ) from error
        finally:
            os.close(root)

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
        self._folder = -1

    def has_begun(self) -> bool:
        """Return whether a loading thread has started; raises NotLoaded on failure."""
        return self._read(_BEGUN) is not None

    def await_end(self, deadline: float) -> int | None:
        """Wait until loading ends; return the address of the proof's text, if known.

        Raises:
            NotLoaded: Loading failed.
            NotAcknowledged: The deadline passed.
        """
        backoff = Backoff(_SHORTEST_POLL, LONGEST_POLL)
        while (found := self._read(_SAID)) is None:
            if time.monotonic() > deadline:
                raise NotAcknowledged(
                    f"process {self._process.pid} started to load the agent, but"
                    " did not finish in time",
                    "Raise --timeout: busy threads hold the GVL for 0.1 s at a time",
                )
            _pause(self._process, self._program, backoff.pause())
        line = safe_text((found.splitlines() or [b""])[0])
        done = _DONE.fullmatch(line)
        if done is None:
            raise NotLoaded(
                f"process {self._process.pid} could not load the agent: {line}"
            )
        return int(done[1]) if done[1] else None

    def _read(self, name: str) -> bytes | None:
        """Return a link's target; None if the process has not created the link.

        Raises:
            NotLoaded: The directory was removed. Another attach does this if the helper
                that keeps the files was killed.
        """
        try:
            status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            is_its = status.st_uid == self._process.uid
            return os.readlink(name.encode(), dir_fd=self._folder) if is_its else None
        except OSError:
            if os.fstat(self._folder).st_nlink == 0:
                raise NotLoaded(
                    f"the files for process {self._process.pid} were removed before it"
                    " loaded them",
                    "Try again",
                ) from None
            return None


def _pause(process: Process, program: bytes, seconds: float) -> None:
    """Wait; raise NoSuchTarget if the process ended, RbtraceError if it called exec."""
    if process.wait(max(seconds, 0.001)):
        raise gone(process.pid)
    check_program(process, program)
