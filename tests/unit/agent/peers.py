"""Processes of another user, or in other namespaces, that connect to an agent."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from rbtrace_py.agent import protocol
from rbtrace_py.agent.proof import answer

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 4, 38, 22
_ERRNO_EPERM = 0x00050001
_PREAD = {"x86_64": 17, "aarch64": 67}[os.uname().machine]


def check(result: int) -> None:
    assert result == 0, os.strerror(ctypes.get_errno())


def run_apart(job: Callable[[], str], *steps: Callable[[], None]) -> str:
    """Run ``job`` in a child that has taken the steps before, and return its result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for step in steps:
                step()
            os.write(write, job().encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def become(uid: int) -> Callable[[], None]:
    """Become another user, and stay dumpable as after an exec."""

    def step() -> None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        check(LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))

    return step


def drop_capabilities() -> None:
    """Give up all capabilities: a container's root has few."""
    header = struct.pack("=II", 0x20080522, 0)
    check(LIBC.capset(header, bytes(24)))


def enter_user_namespace() -> None:
    """Enter a new user namespace as its root."""
    uid = os.getuid()
    check(LIBC.unshare(CLONE_NEWUSER))
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")


def enter_pid_namespace() -> None:
    """Enter a new PID namespace and continue in its first process."""
    check(LIBC.unshare(CLONE_NEWPID))
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)


def read_no_memory() -> None:
    """Install a seccomp filter that refuses pread: a stand-in for Yama."""
    code = [
        (0x20, 0, 0, 0),  # load the system call's number
        (0x15, 0, 1, _PREAD),
        (0x06, 0, 0, _ERRNO_EPERM),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    program = b"".join(struct.pack("=HBBI", *one) for one in code)
    buffer = ctypes.create_string_buffer(program)
    filters = struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(buffer))
    check(LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    check(LIBC.prctl(_PR_SET_SECCOMP, 2, filters, 0, 0))


class Knock:
    """A client that says hello on a socket and presents what it can read for the
    agent."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self._pid = struct.unpack("3i", credentials)[0]

    def greet(self) -> str:
        """Return the level, the code of the error, or ``closed``."""
        try:
            hello = {"magic": protocol.MAGIC, "versions": [protocol.VERSION]}
            offer = self.call(1, "hello", hello)
            text = self._read(offer["address"])
            found = self.call(2, "prove", {"answer": self._answer(text)})
        except (ConnectionError, EOFError):
            return "closed"
        return str(found.get("level") or found["code"])

    def call(self, number: int, command: str, arguments: protocol.Map) -> protocol.Map:
        request = {"command": command, **arguments}
        self._socket.sendall(protocol.pack_request(number, request))
        head = protocol.parse_head(self._receive(protocol.HEAD_SIZE))
        return protocol.decode_map(self._receive(head.length))

    def _receive(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise EOFError
        return data

    def _answer(self, text: bytes | None) -> str | None:
        if text is None:
            return None
        is_inside = os.path.samefile("/proc/self/ns/pid", f"/proc/{self._pid}/ns/pid")
        return answer(text, os.getpid() if is_inside else 0)

    def _read(self, address: int) -> bytes | None:
        try:
            with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
                return os.pread(memory.fileno(), 4096, address)
        except OSError:
            return None


def knock(path: Path, *steps: Callable[[], None]) -> str:
    """Return what a process that has taken the steps gets at the socket."""
    return run_apart(lambda: Knock(path).greet(), *steps)
