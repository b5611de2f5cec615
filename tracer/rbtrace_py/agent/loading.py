"""The agent put into a process: its files, the code that loads them, its answer."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rbtrace_py.agent.addresses import RubyAddresses
from rbtrace_py.agent.attempt import Step
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.files import placed
from rbtrace_py.agent.inject import Injection, NotAcknowledged, inject
from rbtrace_py.agent.keeper import Files
from rbtrace_py.agent.place import NoAgent, can_tell_users, inner_uid
from rbtrace_py.agent.refusal import refuse
from rbtrace_py.errors import NoSuchTarget, RbtraceError
from rbtrace_py.linux.inroot import open_directory_in_root
from rbtrace_py.linux.process import Process, gone
from rbtrace_py.linux.text import safe_text

_HERE = Path(__file__).parent
_LOADER, _AGENT = _HERE / "load.rb", _HERE / "source" / "agent.rb"
_PART = re.compile(rb'^require_relative "([a-z/]+)"$', re.MULTILINE)
_COMMENT = b"# frozen_string_literal: true\n"
"""That each part begins with; Ruby heeds it at the head of a file only."""
_SAID = "said"
_DONE = "done"
_MOST_SAID = 2048
_SLOWEST_POLL = 0.02

_CODE = (
    '::Thread.start("%s/agent.rb"){|path|begin;'
    'text=::File.binread(path).force_encoding("UTF-8");'
    "::RubyVM::InstructionSequence.compile(text,path,path).eval.call(text,path);"
    "rescue ::Exception;end}"
)
"""Run where a trap's handler would be: there a thread may be begun, and little else.
Whatever happens in it is not to reach the program."""


class NotLoaded(RbtraceError):
    """The process began to load the agent, and could not."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """hello: what the agent said of itself; answer_ns: from the beginning to that."""

    injection: Injection
    hello: dict[str, object]
    answer_ns: int


def agent_files(hook: bytes | None) -> Files:
    """What is put there to be loaded, by name.

    hook: the shared object; None: method events are done without
    """
    try:
        loader = _LOADER.read_bytes() + b"__END__\n" + _joined(_AGENT)
    except OSError as error:
        raise RbtraceError(
            f"a file of the agent is missing: {error.filename}: {error.strerror}",
            "install rbtrace-py again",
        ) from error
    files = {"agent.rb": loader, _SAID: None}
    return files if hook is None else {**files, "agent_hook.so": hook}


def _joined(path: Path) -> bytes:
    """The agent as one file: each part where it is required."""

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
    """Have ``process`` load the agent, or begin again one that was stopped.

    files: of ``agent_files``
    limit: seconds in all; at: told of each step

    Raises what ``inject`` and ``placed`` do, NotLoaded, NotAcknowledged.
    """
    began = time.monotonic_ns()
    deadline = time.monotonic() + limit
    check_can_talk(process)
    with placed(process, files) as folder:
        at("placed")
        said = Said(process, folder)
        code = (_CODE % folder).encode()
        injection = inject(process, ruby, code, said.has_begun, limit, at)
        at("acknowledged")
        said.await_end(deadline)
        at("loaded")
        hello = _greet(process, deadline)
        at("answered")
    return Loaded(injection, hello, time.monotonic_ns() - began)


def check_can_talk(process: Process) -> None:
    """Raise Refused where the agent would take us for a stranger.

    It answers to its own user and to root, as its user namespace has them
    (docs/agent.md, "Who may do what").
    """
    us = inner_uid(process, os.geteuid())
    if us == 0 or (os.geteuid() == process.uid and can_tell_users(process)):
        return
    raise refuse(
        process,
        "it is in a user namespace in which we are neither root nor its user",
        f"run it as its user: sudo -u '#{process.uid}' rbtrace-py …",
    )


@contextmanager
def alone(process: Process, deadline: float) -> Iterator[None]:
    """One tracer at a time puts the agent into a process; raises RbtraceError.

    Any file of /proc would do for a lock, if not for who may open it: this one opens
    only to those who might trace the process (ptrace(2), PTRACE_MODE_READ).
    """
    file = process.open("environ")
    try:
        while not _locked(file):
            if time.monotonic() > deadline:
                raise RbtraceError(
                    f"another tracer is attaching to process {process.pid}",
                    "try again",
                )
            time.sleep(_SLOWEST_POLL)
        yield
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _greet(process: Process, deadline: float) -> dict[str, object]:
    """Ask it who it is. Its socket is there by now."""
    while True:
        try:
            with Agent(process) as agent:
                return dict(agent.hello)
        except NoAgent:
            if time.monotonic() > deadline:
                raise
        _pause(process, _SLOWEST_POLL)


class Said:
    """What load.rb has written to its file, which the process could have replaced."""

    def __init__(self, process: Process, folder: str) -> None:
        self._process = process
        self._folder = folder

    def has_begun(self) -> bool:
        """Has one of its threads taken it up?"""
        return self._read() is not None

    def await_end(self, deadline: float) -> None:
        """Wait until it has come to its end; raises NotLoaded if that was an error."""
        pause = 0.0005
        while not (found := self._read() or b"").endswith(b"\n"):
            if time.monotonic() > deadline:
                raise NotAcknowledged(
                    f"process {self._process.pid} began to load the agent, but did not"
                    " get through with it in time",
                    "threads that are busy keep Ruby's lock for 0.1 s each, again and"
                    " again: give it more --timeout",
                )
            _pause(self._process, pause)
            pause = min(2 * pause, _SLOWEST_POLL)
        line = safe_text(found.splitlines()[0], _MOST_SAID)
        if line != _DONE:
            raise NotLoaded(
                f"process {self._process.pid} could not load the agent: {line}"
            )

    def _read(self) -> bytes | None:
        """What is in the file, None where there is no such file of the process's."""
        try:
            return self._read_file()
        except (OSError, NoSuchTarget):
            return None

    def _read_file(self) -> bytes | None:
        root = self._process.open("root", os.O_PATH | os.O_DIRECTORY)
        try:
            folder = open_directory_in_root(root, self._folder)
        finally:
            os.close(root)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(_SAID, flags, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            status = os.fstat(fd)
            # Another file of ours, or root's, must not be had read by a link to it.
            is_its = status.st_uid == self._process.uid and status.st_nlink == 1
            if not stat.S_ISREG(status.st_mode) or not is_its:
                return None
            return os.pread(fd, _MOST_SAID, 0)
        finally:
            os.close(fd)


def _pause(process: Process, seconds: float) -> None:
    if process.wait(max(seconds, 0.001)):
        raise gone(process.pid)
