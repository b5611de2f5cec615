"""The agent's socket of a process: its path, and the check that it is genuine.

See docs/agent/access.md, "The socket's place" and "Who may do what".
"""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice

from rbtrace_py.agent.filter_check import check_filters
from rbtrace_py.errors import (
    TASKS_HINT,
    BadElf,
    NoSuchTarget,
    NotPermitted,
    RbtraceError,
)
from rbtrace_py.linux.binaries import MappedFile, mapped_files, open_mapped
from rbtrace_py.linux.cgroup_limits import thread_room
from rbtrace_py.linux.elf.reader import Budget, ElfFile
from rbtrace_py.linux.kernel import missing_of
from rbtrace_py.linux.paths_in_root import open_directory_in_root
from rbtrace_py.linux.process import Process, gone, inner_id, parse_status
from rbtrace_py.linux.ruby_probes import is_ruby_binary
from rbtrace_py.linux.text import safe_text

_BASES = ("/tmp", "/dev/shm")
_ROOT = 0
"""The user of a server that was started by root and then changed its user."""
_VARIABLE, _RUNTIME = b"TRACEPOINT_AGENT_DIR", b"XDG_RUNTIME_DIR"
_LONGEST_PATH = 4096
"""PATH_MAX."""
_CREDENTIALS = struct.Struct("3i")
_MOST_NAMES = 4096
_MOST_SOCKETS = 16
"""Maximum number of sockets tried per directory."""
_TIMEOUT = struct.Struct("ll")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+-]+")
"""A path that needs no quotes in Ruby code."""
_MARK = b"\0ruby_version\0"
_MAX_STRINGS = 64 << 20
CONNECT_SECONDS = 5
"""Time limit for all sockets together, because connecting to one may block."""
HOW_TO_LOAD = (
    'Load it in the program (require "tracepoint/agent", from the gem'
    " tracepoint-usdt), or start it with RUBYOPT=-rtracepoint/agent"
)
ENDED_BEFORE = "the program exited before its agent answered"
"""Message about a program that we started."""


class NoAgent(NoSuchTarget):
    """The process has no agent, or we may not connect to it."""


class HiddenAgent(NotPermitted, NoAgent):
    """We lack permission to check whether another user's process has an agent."""


def connect(process: Process, needs_thread: bool = True) -> socket.socket:
    """Connect to the agent in ``process``; the kernel confirms the peer's pid.

    The agent makes system calls for each connection, so its seccomp filters are checked
    first.

    Args:
        process: The process.
        needs_thread: Refuse a process that cannot start the connection's thread. If
            that thread fails to start, Ruby 3.3 waits for it forever.

    Raises:
        Refused: A seccomp filter would kill the process.
        NoAgent: There is no agent, or (HiddenAgent) we may not know.
        NotPermitted: The kernel denied permission.
        NoSuchTarget: The process has ended.
    """
    search = _Search(process, needs_thread)
    for directory in chain(_directories(process), _directories_of_root(process)):
        connection = search.connection(directory)
        if connection is not None and process.alive():
            return connection
        if connection is not None:
            connection.close()
            raise gone(process.pid)
    if process.is_ending():
        raise gone(process.pid)
    error = None if search.reasons else runs_no_ruby(process)
    if error is not None:
        raise error
    _check_rights(process, search)
    why = "".join(f": {reason}" for reason in search.reasons[:1])
    refused = "".join(f"; not checked: {reason}" for reason in search.refused)
    raise NoAgent(
        f"no agent in process {process.pid}{why}",
        f"{HOW_TO_LOAD}; or load it now: rbtrace-py attach {process.pid}{refused}",
    )


def _check_rights(process: Process, search: _Search) -> None:
    """Raise HiddenAgent if we lack the permission to reach the agent."""
    user, owner = os.geteuid(), process.uid
    if user not in (_ROOT, owner):
        raise HiddenAgent(
            f"an agent in process {process.pid} answers only root and user {owner}",
            "Run as root or as that user",
            root_helps=True,
        )
    missing = missing_of({"CAP_DAC_OVERRIDE"})
    is_denied = search.is_denied or not _can_read_variables(process)
    if user != owner and is_denied and missing:
        raise HiddenAgent(
            f"cannot reach an agent in process {process.pid} of user {owner} without"
            f" {missing}",
            f"Add {missing}, or run as that user",
        )


def runs_no_ruby(process: Process) -> NoSuchTarget | None:
    """Return the error for a process that cannot have an agent, or None."""
    try:
        may_have = _may_be_ruby(process.identity, process.program, process)
    except RbtraceError:
        return None
    if may_have:
        return None
    if process.is_ending():  # its mappings, Ruby or not, are already gone
        return gone(process.pid)
    return NoAgent(
        f"process {process.pid} ({process.comm}) does not run Ruby",
        "Name a process of CRuby (MRI), not of JRuby or TruffleRuby",
    )


@lru_cache(maxsize=16)
def _may_be_ruby(identity: tuple[int, int], program: bytes, process: Process) -> bool:
    """Cache the result per program, because waiting for an agent repeats the query."""
    files = mapped_files(process)
    # Most processes queried have a file with Ruby's name.
    return any(is_ruby_binary(file.binary.path) for file in files) or any(
        _names_ruby(process, file) for file in files
    )


def _names_ruby(process: Process, file: MappedFile) -> bool:
    """Return whether a file defines or uses a symbol that every Ruby has."""
    with suppress(BadElf), open_mapped(process, file) as opened:
        elf = ElfFile(opened.fd, Budget())
        sections = (*elf.named(b".dynstr"), *elf.named(b".strtab"))
        return any(_MARK in elf.data(each, _MAX_STRINGS) for each in sections)
    return False


class _Search:
    """The search for a process's socket.

    Attributes:
        reasons: Why sockets are not genuine or refuse connections.
        refused: Directories that others may have written to, and why.
        is_denied: True if we lacked permission for a directory or a socket.
    """

    def __init__(self, process: Process, needs_thread: bool) -> None:
        self._process = process
        self._needs_thread = needs_thread
        self._deadline = time.monotonic() + CONNECT_SECONDS
        self.reasons: list[str] = []
        self.refused: list[str] = []
        self.is_denied = False

    def connection(self, directory: str) -> socket.socket | None:
        """Connect to the process's own socket in a directory, if it exists."""
        try:
            fd = _open_directory(self._process, directory)
        except (OSError, RbtraceError) as error:
            self.is_denied |= isinstance(error, (PermissionError, NotPermitted))
            return None
        try:
            problem = _why_untrusted(self._process, fd)
            if problem is None:
                return self._first(fd)
            self.refused.append(f"{safe_text(os.fsencode(directory))}, which {problem}")
            return None
        finally:
            os.close(fd)

    def _first(self, directory: int) -> socket.socket | None:
        for name in islice(_names(self._process, directory), _MOST_SOCKETS):
            left = self._deadline - time.monotonic()
            if left <= 0:
                return None
            path = f"/proc/self/fd/{directory}/{name}"
            self._check(path)
            try:
                connection = _connect(path, left, self.reasons)
            except PermissionError as error:
                self.is_denied = True
                self.reasons.append(f"its socket cannot be used: {error.strerror}")
                continue
            if connection is None:
                continue
            problem = _foreign(self._process, connection)
            if problem is None:
                return connection
            connection.close()
            self.reasons.append(problem)
        return None

    def _check(self, path: str) -> None:
        """Raise if a connection to this socket could kill or block the process."""
        if not os.path.exists(path):
            return
        check_filters(self._process, "hello")
        if self._needs_thread and thread_room(self._process) == 0:
            raise RbtraceError(
                f"process {self._process.pid} cannot start a thread for its agent:"
                " pids.max of its cgroup is reached",
                TASKS_HINT,
            )


def _why_untrusted(process: Process, directory: int) -> str | None:
    """Return why others could have created sockets there, or None."""
    status = os.fstat(directory)
    if status.st_uid not in (process.uid, _ROOT):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return "can be written by others"
    return None


def _open_directory(process: Process, directory: str) -> int:
    """Open a directory in the process's root; it must not be a link itself.

    Raises OSError, and the errors of ``Process.open``.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not directory.startswith("/"):
        if process.cwd is None:
            raise FileNotFoundError
        directory = os.path.join(process.cwd, directory)
    before, name = os.path.split(directory.rstrip("/"))
    if name in ("", ".", ".."):
        before, name = directory, "."
    root = _open_root(process)
    try:
        way = open_directory_in_root(root, before)
    finally:
        os.close(root)
    try:
        return os.open(name, flags, dir_fd=way)
    finally:
        os.close(way)


def _open_root(process: Process) -> int:
    """Open the process's root directory, or ours if that is denied.

    The kernel confirms the listener's pid in either case.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return process.open("root", flags)
    except NotPermitted:
        return os.open("/", flags)


def _directories(process: Process) -> Iterator[str]:
    """Yield the socket's directories in the process's root, by preference.

    The variables are those at the program's start. A relative path refers to the
    working directory of that time.
    """
    variables = _variables(process)
    if directory := variables.get(_VARIABLE):
        yield directory
    uid = _inner_uid(process, process.uid)
    uid = process.uid if uid is None else uid
    runtime = variables.get(_RUNTIME, "")
    bases = [runtime] if runtime.startswith("/") else []
    for base in dict.fromkeys((*bases, f"/run/user/{uid}", *_BASES)):
        yield f"{base}/rbtrace-agent-{uid}"


def _directories_of_root(process: Process) -> Iterator[str]:
    """Yield the directories of a process that was root when its agent started."""
    if process.uid != _ROOT == os.geteuid():
        for base in (f"/run/user/{_ROOT}", *_BASES):
            yield f"{base}/rbtrace-agent-{_ROOT}"


def socket_places(process: Process) -> list[str]:
    """Return the paths that a new agent's socket may have, by preference.

    The list is empty if the program chooses the directory itself. The paths will be
    part of Ruby code, so directories with special characters are omitted.
    """
    if _variables(process).get(_VARIABLE):
        return []
    name = next(_names(process, -1))
    directories = filter(_PLAIN_PATH.fullmatch, _directories(process))
    return [f"{directory}/{name}" for directory in directories]


def _can_read_variables(process: Process) -> bool:
    try:
        process.read("environ", 1)
    except NotPermitted:
        return False
    return True


def _variables(process: Process) -> dict[bytes, str]:
    """Return the environment variables that name a directory."""
    try:
        words = process.read("environ").split(b"\0")
    except RbtraceError:
        return {}
    pairs = (word.partition(b"=") for word in words if len(word) < _LONGEST_PATH)
    known = (_VARIABLE, _RUNTIME)
    return {name: os.fsdecode(path) for name, _, path in pairs if name in known}


def _inner_uid(process: Process, uid: int) -> int | None:
    """Return the number of our user in the process's namespace, or None."""
    for inner, outer, count in _uid_map(process):
        if outer <= uid < outer + count:
            return inner + uid - outer
    return None


def _uid_map(process: Process) -> list[tuple[int, int, int]]:
    """Return rows of (first inner number, first outer number, count)."""
    rows = (line.split() for line in process.read("uid_map").splitlines())
    return [(int(inner), int(outer), int(count)) for inner, outer, count in rows]


def _names(process: Process, directory: int) -> Iterator[str]:
    """Yield socket names, the expected one first; time namespaces shift start times."""
    pid = inner_id(parse_status(process.read("status")), process.pid)
    name = f"{pid}-{process.start_time}.sock"
    yield name
    pattern = re.compile(rf"{pid}-\d+\.sock", re.ASCII)
    with os.scandir(directory) as entries:
        for entry in islice(entries, _MOST_NAMES):
            if entry.name != name and pattern.fullmatch(entry.name):
                yield entry.name


def _connect(path: str, seconds: float, reasons: list[str]) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Blocking: only this waits for a full queue (unix_stream_connect).
        wait = _TIMEOUT.pack(int(seconds), int(seconds % 1 * 999_999) + 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        connection.connect(path)
        return connection
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        reasons.append("its socket exists, but no process is listening")
    except BlockingIOError:
        reasons.append("its socket refuses connections; too many are waiting")
    except PermissionError:
        connection.close()
        raise
    except OSError as error:
        reasons.append(f"its socket cannot be used: {safe_text(str(error).encode())}")
    connection.close()
    return None


def _foreign(process: Process, connection: socket.socket) -> str | None:
    """Return why the peer is not the process, or None if it is (SO_PEERCRED)."""
    size = _CREDENTIALS.size
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = _CREDENTIALS.unpack(found)
    if pid != process.pid:
        return f"process {pid} listens on its socket"
    if uid not in (process.uid, _ROOT):
        return f"its socket belongs to user {uid}, its former user"
    return None
