"""Become another user in another root, give up every right, and run a program.

A program of its own, started by ``sandbox.py``: it imports nothing of the package, and
its one argument is JSON. Descriptors are inherited; ``report`` gets one line: the pid
of the program, as the starter's pid namespace has it, or what went wrong.

namespaces: [[descriptor, CLONE_NEW…], …], to be joined in that order
root: descriptor of the directory to be the root, or null
program: descriptor of the file to run; keep: descriptors it inherits
uid, gid: whom to be, as the joined user namespace numbers them
groups: the same, as the starter's numbers them; null where they may not be set
limits: {number of the rlimit: value}
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_CAPBSET_READ = 23
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32 = 0x40000000
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_EPERM = 0x00050001
_ENOSYS = 0x00050026
_RETURN, _LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT = 0x06, 0x20, 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_HARMLESS = (
    *(0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 22, 23),
    *(24, 25, 28, 32, 33, 35, 39, 60, 63, 72, 79, 89, 95, 96, 97, 98, 99, 100),
    *(102, 104, 107, 108, 110, 111, 115, 118, 120, 131, 143, 145, 146, 147, 158),
    *(186, 202, 204, 217, 218, 219, 221, 222, 223, 224, 225, 226, 228, 229, 230),
    *(231, 232, 233, 262, 267, 269, 270, 271, 273, 281, 290, 291, 292, 293, 318),
    *(322, 324, 332, 334, 436, 439, 441),
)
"""Numbers of system calls (x86-64) with which a program starts, reads files, keeps
time and runs threads: no socket, no process, no signal to another, no new file."""

_OPEN, _CLONE, _TGKILL, _OPENAT, _PRLIMIT, _CLONE3 = 2, 56, 234, 257, 302, 435
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, __O_TMPFILE."""
_CLONE_THREAD = 0x10000
_NEW_NAMESPACE = 0x7E020080

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, doing: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{doing}: {os.strerror(code)}")


def _prctl(option: int, *arguments: int) -> int:
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    return int(_libc.prctl(option, *words))


def _instruction(code: int, number: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, number)


def _filter(pid: int) -> bytes:
    """A classic BPF program that allows what is harmless, and refuses the rest."""
    return b"".join(
        (
            _instruction(_LOAD, _ARCHITECTURE),
            _instruction(_EQUAL, _AUDIT_ARCH_X86_64, 1, 0),
            _instruction(_RETURN, _KILL),
            _instruction(_LOAD, _NUMBER),
            _instruction(_GREATER_EQUAL, _X32, 0, 1),
            _instruction(_RETURN, _EPERM),
            *_rules(pid),
            _instruction(_RETURN, _EPERM),
        )
    )


def _rules(pid: int) -> Iterator[bytes]:
    for number in _HARMLESS:
        yield _instruction(_EQUAL, number, 0, 1)
        yield _instruction(_RETURN, _ALLOW)
    # What a C library does without clone3 can be looked at here.
    yield _instruction(_EQUAL, _CLONE3, 0, 1)
    yield _instruction(_RETURN, _ENOSYS)
    yield from _unless(_OPEN, 1, _instruction(_ANY_BIT, _WRITING, 1, 0))
    yield from _unless(_OPENAT, 2, _instruction(_ANY_BIT, _WRITING, 1, 0))
    yield from _unless(_TGKILL, 0, _instruction(_EQUAL, pid, 0, 1))
    yield from _unless(_PRLIMIT, 0, _instruction(_EQUAL, 0, 0, 1))
    yield _instruction(_EQUAL, _CLONE, 0, 5)
    yield _instruction(_LOAD, _ARGUMENTS)
    yield _instruction(_ANY_BIT, _NEW_NAMESPACE, 2, 0)
    yield _instruction(_ANY_BIT, _CLONE_THREAD, 0, 1)
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_RETURN, _EPERM)


def _unless(number: int, argument: int, test: bytes) -> Iterator[bytes]:
    """Allow a call whose argument passes; the test skips one where it does not."""
    yield _instruction(_EQUAL, number, 0, 4)
    yield _instruction(_LOAD, _ARGUMENTS + 8 * argument)
    yield test
    yield _instruction(_RETURN, _ALLOW)
    yield _instruction(_RETURN, _EPERM)


def _install_filter() -> None:
    program = _filter(os.getpid())
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(head, len(head))
    address = ctypes.addressof(holder)
    _check(_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address), "seccomp")


def _drop_capabilities() -> None:
    """None now, and none to be had at exec, not even by user 0."""
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, b"\0" * 24), "capset")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def _drop_bounding_set() -> None:
    for capability in range(64):
        if _prctl(_PR_CAPBSET_READ, capability) == 1:
            _prctl(_PR_CAPBSET_DROP, capability)


def _become(config: dict[str, Any]) -> None:
    """Another user, without capabilities, for good."""
    uid, gid = config["uid"], config["gid"]
    if config["groups"] is not None:
        _drop_bounding_set()
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        raise PermissionError(1, "cannot become the target's user")
    _drop_capabilities()
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    _check(_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "PR_SET_PDEATHSIG")


def _tidy(config: dict[str, Any], null: int, output: int) -> None:
    """Standard streams, descriptors, signals, limits as they should be at a start."""
    os.setsid()
    os.chdir("/")
    os.umask(0o77)
    for number, limit in config["limits"].items():
        resource.setrlimit(int(number), (limit, limit))
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(null, 2)
    passed = [fd for fd, _ in config["namespaces"]] + [config["root"], output]
    for fd in (*passed, config["program"], config["report"]):
        if fd is not None:
            os.set_inheritable(fd, False)
    for fd in config["keep"]:
        os.set_inheritable(fd, True)


def _run(config: dict[str, Any], null: int) -> NoReturn:
    try:
        _tidy(config, null, config["output"])
        _become(config)
        _install_filter()
        os.execve(config["program"], config["arguments"], config["environment"])
    except OSError as error:
        os.write(config["report"], f"error {error.strerror}\n".encode())
    os._exit(127)


def main(config: dict[str, Any]) -> None:
    """Join, fork (a pid namespace is entered by children only), report, wait."""
    null = os.open(os.devnull, os.O_RDWR)
    if config["groups"] is not None:
        # Before a user namespace is joined: in there it may be forbidden for good.
        os.setgroups(config["groups"])
    for fd, kind in config["namespaces"]:
        _check(_libc.setns(fd, kind), "setns")
    if config["root"] is not None:
        os.fchdir(config["root"])
        os.chroot(".")
    pid = os.fork()
    if pid == 0:
        _run(config, null)
    os.write(config["report"], f"pid {pid}\n".encode())
    os.close(config["report"])
    os.close(config["output"])
    os.waitpid(pid, 0)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    try:
        main(settings)
    except OSError as problem:
        os.write(settings["report"], f"error {problem.strerror}\n".encode())
        sys.exit(1)
