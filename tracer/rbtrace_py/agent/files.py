"""Temporary private files for a process to load, in its own root directory."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rbtrace_py.agent.keeper import Files, Owner, keep
from rbtrace_py.errors import NotPermitted, RbtraceError, TooManyTasks
from rbtrace_py.linux.backoff import Backoff
from rbtrace_py.linux.process import Process, gone, parse_status
from rbtrace_py.linux.readable import readable

_ANSWER_SECONDS = 10.0
_REMOVE_SECONDS = 2.0
_LONGEST_ANSWER = 4096


class NoPlace(RbtraceError):
    """Files cannot be written anywhere in the target's root."""


class NotRemoved(RbtraceError):
    """Files remain in the target's root. The next ``placed`` there removes them."""


@contextmanager
def placed(
    process: Process, files: Files, sockets: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Make a new directory with ``files`` (contents by name) for ``process``.

    The directory (0700) and its files (0600) belong to the user of the process. They
    are removed when the block ends, or when this process ends, even by SIGKILL.
    Contents of None denote a file that the process creates: it is only removed.

    Yields:
        The directory's path as the process sees it, and the first of ``sockets`` whose
        directory exists now (0700, the same user), or "". That directory stays.

    Raises:
        NoPlace, NotPermitted, NoSuchTarget: The files cannot be created.
        NotRemoved: The files still exist after the block.
    """
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a file name")
    owner = _owner(process)
    if os.geteuid() not in (0, owner.uid):
        raise NotPermitted(
            f"process {process.pid} belongs to user {owner.uid}",
            "Run as that user, or as root",
            root_helps=True,
        )
    root = process.open("root", os.O_PATH | os.O_DIRECTORY)
    try:
        child, answer, hold = _start(root, owner, files, sockets)
    finally:
        os.close(root)
    try:
        path, socket = _read_answer(process, answer)
        yield path, socket
    finally:
        os.close(answer)
        os.close(hold)
        has_removed = _collect(child)
    if not has_removed:
        raise NotRemoved(
            f"the helper that removes {path} from the root of process {process.pid}"
            " was killed",
            f"Run rbtrace-py detach {process.pid} and attach again, which removes it",
        )


def _owner(process: Process) -> Owner:
    """Return the effective IDs, with which a process opens files."""
    status = parse_status(process.read("status"))
    try:
        return Owner(
            uid=int(status["Uid"].split()[1]),
            gid=int(status["Gid"].split()[1]),
            groups=tuple(int(word) for word in status["Groups"].split()),
        )
    except (KeyError, ValueError, IndexError):
        raise gone(process.pid) from None


def _start(
    root: int, owner: Owner, files: Files, sockets: Sequence[str]
) -> tuple[int, int, int]:
    """Start the keeper; return its pid, the answer's descriptor, and the hold's.

    Closing the hold's descriptor ends the keeper.
    """
    answer, answer_end = os.pipe2(os.O_CLOEXEC)
    hold_end, hold = os.pipe2(os.O_CLOEXEC)
    # A signal within a fork hook is lost, because Python ignores exceptions in hooks.
    # The module logging has such a hook.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        child = os.fork()
    except BlockingIOError:
        raise TooManyTasks from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if child == 0:
        keep(root, owner, files, sockets, answer_end, hold_end)
    os.close(answer_end)
    os.close(hold_end)
    return child, answer, hold


def _read_answer(process: Process, answer: int) -> tuple[str, str]:
    """Read the keeper's answer. A file system of the target may block the keeper."""
    text, deadline = b"", time.monotonic() + _ANSWER_SECONDS
    while len(text) < _LONGEST_ANSWER:
        left = max(0.0, deadline - time.monotonic())
        if not readable([answer], left):
            raise NoPlace(f"the file system of process {process.pid} does not respond")
        data = os.read(answer, _LONGEST_ANSWER)
        if not data:
            break
        text += data
    said = json.loads(text or b'{"error": "the keeper of the files has ended"}')
    if "path" not in said:
        raise NoPlace(
            f"cannot put files into the root of process {process.pid}"
            f" ({said['error']})",
            "Provide a /tmp that its user may write to and execute from",
        )
    return str(said["path"]), str(said["socket"])


def _collect(child: int) -> bool:
    """Wait for the keeper, and kill it if it hangs; return whether it ended by itself.

    It removes the files before it ends.
    """
    deadline = time.monotonic() + _REMOVE_SECONDS
    backoff = Backoff(0.0002, 0.01)
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return not os.WIFSIGNALED(status)
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False
        time.sleep(backoff.pause())
