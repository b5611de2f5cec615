"""Run a target's own program, with never more rights than the target has.

Whoever owns the file decides what it does. So it runs as the target's user and
groups, in its root and namespaces, without capabilities or a way to get some, under a
filter of system calls that leaves it reading, computing and its threads. A target of
user 0 is not run as user 0, but as nobody.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import NoSuchTarget, NotPermitted, RbtraceError
from rbtrace_py.linux import confined
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.process import Process, parse_status
from rbtrace_py.linux.ready import readable

_NAMESPACES = {
    "user": 0x10000000,
    "mnt": 0x00020000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "cgroup": 0x02000000,
    "pid": 0x20000000,
}
"""CLONE_NEW… of each; the user namespace goes first, for the right to the others."""

_NOBODY = 65534
_SETGID, _SETUID = 1 << 6, 1 << 7
"""CAP_SETGID, CAP_SETUID (include/uapi/linux/capability.h)."""

_LIMITS = {
    resource.RLIMIT_CPU: 10,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_AS: 8 << 30,
}

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom to be; uid and gid as the target's user namespace numbers them.

    groups: as ours does; None where we may not set any, and have none that it has not
    """

    uid: int
    gid: int
    groups: tuple[int, ...] | None


class Sandboxed(Closing):
    """A program that runs confined; ended, with its whole session, by ``close``."""

    def __init__(self, starter: subprocess.Popen[bytes], pid: int, output: int) -> None:
        self.pid = pid
        self._starter = starter
        self._output = output
        self._rest = b""

    def read_line(self, deadline: float) -> bytes:
        """Return its next line without the newline.

        deadline: on the clock of ``time.monotonic``, in seconds. Raises
        RbtraceError if it ends, says too much, or says nothing in time.
        """
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not readable([self._output], left):
                raise RbtraceError("it said nothing in time")
            data = os.read(self._output, 1 << 16)
            if not data:
                raise RbtraceError("it ended early")
            self._rest += data
            if len(self._rest) > _LONGEST_LINE:
                raise RbtraceError("it said too much")
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        """Kill it; may be called twice."""
        if self._output < 0:
            return
        # Its pid stays its own until the starter, its parent, has collected it.
        if self._starter.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._starter.wait(5)
        if self._starter.poll() is None:
            self._starter.kill()
            self._starter.wait()
        os.close(self._output)
        self._output = -1


def run_as(
    process: Process, arguments: Sequence[str], preload: int | None = None
) -> Sandboxed:
    """Run the program of ``process`` with ``arguments`` (the first is its name).

    preload: descriptor of a library of the target to be used in place of any other
    of its name. The caller closes what comes back. Raises NotPermitted if that could
    give it more rights than the target has, RbtraceError if it does not start.
    """
    identity = whom_to_be(process)
    descriptors: list[int] = []
    try:
        return _start(process, identity, list(arguments), preload, descriptors)
    finally:
        for fd in descriptors:
            os.close(fd)


def whom_to_be(process: Process) -> Identity:
    """Return who may run the program of ``process``; raises NotPermitted."""
    if platform.machine() != "x86_64":
        raise _refusal(process, "the filter of system calls is for x86-64")
    status = parse_status(process.read("status"))
    try:
        uids = [int(word) for word in status["Uid"].split()]
        gids = [int(word) for word in status["Gid"].split()]
        groups = tuple(int(word) for word in status["Groups"].split())
        capabilities = int(status["CapEff"], 16)
    except (KeyError, ValueError):
        raise NoSuchTarget(f"process {process.pid} has ended") from None
    if len({*uids}) != 1 or len({*gids}) != 1:
        raise _refusal(process, "it runs with the rights of several users")
    if os.geteuid() != 0:
        return _as_ourselves(process, uids[0], gids[0], groups)
    if uids[0] == 0:
        if not capabilities & _SETUID or not capabilities & _SETGID:
            raise _refusal(process, "it is root without the right to be anyone else")
        return Identity(_NOBODY, _NOBODY, ())
    return Identity(
        _mapped(process, "uid", uids[0]), _mapped(process, "gid", gids[0]), groups
    )


def _as_ourselves(
    process: Process, uid: int, gid: int, groups: tuple[int, ...]
) -> Identity:
    """Without root we are who we are: that must not be more than the target is."""
    foreign = [kind for kind in _NAMESPACES if _is_foreign(process, kind)]
    if foreign or not _same_root(process):
        raise _refusal(process, "it has another root or other namespaces", "as root")
    if os.getresuid() != (uid,) * 3 or os.getresgid() != (gid,) * 3:
        raise _refusal(process, f"it belongs to user {uid}", "as root")
    if not {*os.getgroups()} <= {*groups, gid}:
        raise _refusal(process, "we are in groups that it is not in", "as root")
    return Identity(uid, gid, None)


def _refusal(process: Process, reason: str, how: str = "") -> NotPermitted:
    return NotPermitted(
        f"the program of process {process.pid} is not run on its behalf: {reason}",
        f"run rbtrace-py {how}" if how else "",
    )


def _is_foreign(process: Process, kind: str) -> bool:
    """Is its namespace of that kind another than ours, or unknown?"""
    try:
        own = os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return False
    return process.namespace(kind) != own


def _same_root(process: Process) -> bool:
    try:
        own, its = os.stat("/"), os.stat(f"/proc/{process.pid}/root/.")
    except OSError:
        return False
    return (own.st_dev, own.st_ino) == (its.st_dev, its.st_ino)


def _mapped(process: Process, kind: str, number: int) -> int:
    """A user or group of ours as the target's user namespace numbers it."""
    if not _is_foreign(process, "user"):
        return number
    for line in process.read(f"{kind}_map").split(b"\n")[:400]:
        words = line.split()
        if len(words) == 3:
            inner, outer, count = map(int, words)
            if outer <= number < outer + count:
                return inner + number - outer
    raise _refusal(process, f"its {kind} {number} is not in its user namespace")


def _start(
    process: Process,
    identity: Identity,
    arguments: list[str],
    preload: int | None,
    descriptors: list[int],
) -> Sandboxed:
    program = process.open("exe", os.O_PATH)
    descriptors.append(program)
    namespaces = []
    for kind, flag in _NAMESPACES.items():
        if _is_foreign(process, kind):
            fd = process.open(f"ns/{kind}")
            descriptors.append(fd)
            namespaces.append((fd, flag))
    root = None
    if namespaces or not _same_root(process):
        root = process.open("root", os.O_PATH | os.O_DIRECTORY)
        descriptors.append(root)
    output, output_end = os.pipe2(os.O_CLOEXEC)
    report, report_end = os.pipe2(os.O_CLOEXEC)
    descriptors += [output_end, report_end, report]
    environment = dict(_ENVIRONMENT)
    if preload is not None:
        environment["LD_PRELOAD"] = f"/proc/self/fd/{preload}"
    settings = {
        "namespaces": namespaces,
        "root": root,
        "program": program,
        "keep": [] if preload is None else [preload],
        "output": output_end,
        "report": report_end,
        "uid": identity.uid,
        "gid": identity.gid,
        "groups": identity.groups,
        "arguments": arguments,
        "environment": environment,
        "limits": _LIMITS,
    }
    passed = [fd for fd in (*descriptors, preload) if fd is not None and fd != report]
    starter = subprocess.Popen(
        [sys.executable, "-I", "-S", confined.__file__, json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=passed,
        start_new_session=True,
    )
    for fd in (output_end, report_end):
        os.close(fd)
        descriptors.remove(fd)
    return _started(starter, report, output)


def _started(starter: subprocess.Popen[bytes], report: int, output: int) -> Sandboxed:
    """Read the starter's report up to its end, which is the program's beginning."""
    text, deadline = b"", time.monotonic() + 10
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not readable([report], left):
            break
        data = os.read(report, 4096)
        if not data or len(text) > 4096:
            break
        text += data
    words = dict(
        line.split(" ", 1)
        for line in text.decode("utf-8", "replace").splitlines()
        if " " in line
    )
    if "pid" in words and "error" not in words:
        return Sandboxed(starter, int(words["pid"]), output)
    starter.kill()
    starter.wait()
    os.close(output)
    reason = words.get("error", "no answer")
    raise RbtraceError(f"the target's program could not be run: {reason}")
