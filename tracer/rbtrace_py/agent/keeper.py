"""A helper process that makes files for a target, as the target's user.

It removes the files when we release it or end in any way. It has only that user's
rights. Links and foreign directories in the target's root therefore cannot make it do
anything that the user could not do.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import signal
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

from rbtrace_py.linux.paths_in_root import open_directory_in_root

PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Directories of the target's root, in order of preference."""

Files = Mapping[str, bytes | None]
"""Contents by name; None: a file that the process may create."""

_MOST_TRIES = 10
_STALE = re.compile(r"\.rbtrace-[0-9a-f]{16}", re.ASCII)
_MOST_NAMES = 4096
_MOST_FILES = 16
_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Owner:
    """The user to become, in our user namespace; ``groups`` excludes ``gid``."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def keep(
    root: int,
    owner: Owner,
    files: Files,
    sockets: Sequence[str],
    answer: int,
    hold: int,
) -> NoReturn:
    """Make ``files``, answer with their path, and remove them when ``hold`` is closed.

    This must be called in a child process. The answer is JSON: {"path": …, "socket": …}
    or {"error": …}. The socket is one of ``sockets`` whose directory exists now, or "".

    Args:
        root: Descriptor of the target's root.
        owner: User of the files.
        files: Contents by name.
        sockets: Possible paths of the agent's socket.
        answer: Pipe to write the answer to.
        hold: Pipe that the parent closes at the end.
    """
    try:
        _isolate({root, answer, hold})
        _become(owner)
        with _Directory(root, owner, files) as made:
            socket = _prepare_socket(root, owner.uid, sockets)
            said = {"path": made.path, "socket": socket}
            os.write(answer, json.dumps(said).encode())
            os.close(answer)
            while os.read(hold, 4096):
                pass
    except OSError as error:
        problem = {"error": error.strerror or str(error)}
        with suppress(OSError):
            os.write(answer, json.dumps(problem).encode())
        os._exit(1)
    finally:
        os._exit(0)


def _isolate(kept: set[int]) -> None:
    """Close all other descriptors, and ignore Ctrl-C."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    # Standard output may be a pipe that a reader expects to be closed.
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    before = 3
    for fd in sorted(fd for fd in kept if fd > 2):
        os.closerange(before, fd)
        before = fd + 1
    os.closerange(before, os.sysconf("SC_OPEN_MAX"))
    os.umask(0o077)
    os.chdir("/")


def _become(owner: Owner) -> None:
    """Become another user, which only root can do, and drop all capabilities.

    Processes of that user must not trace us: /proc/PID/exe is our interpreter, and our
    memory is a copy of the tracer's. A change of user resets the dumpable flag to
    fs.suid_dumpable.
    """
    _hide()
    if os.geteuid() == 0:
        os.setgroups(owner.groups)
        os.setresgid(owner.gid, owner.gid, owner.gid)
        os.setresuid(owner.uid, owner.uid, owner.uid)
        _hide()
    if os.getresuid() != (owner.uid,) * 3:
        raise PermissionError(1, f"not allowed to become user {owner.uid}")
    if _libc.capset(struct.pack("<Ii", _CAPABILITY_VERSION_3, 0), bytes(24)):
        raise PermissionError(1, "cannot give up capabilities")
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _hide() -> None:
    if _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise PermissionError(1, "cannot prevent others from tracing the helper")


class _Directory:
    """A new directory with files, which is removed when the block ends.

    It is locked (flock) during the block. If a keeper is killed, its lock is released,
    and the next keeper removes the directory.
    """

    def __init__(self, root: int, owner: Owner, files: Files) -> None:
        self._root = root
        self._owner = owner
        self._files = files
        self._made: list[str] = []
        self._name = ""
        self._place = self._fd = -1
        self.path = ""

    def __enter__(self) -> _Directory:
        problems: list[str] = []
        for place in PLACES:
            try:
                self._make_in(place)
            except OSError as error:
                problems.append(f"{place}: {error.strerror}")
                self._remove()
            else:
                self.path = f"{place}/{self._name}"
                return self
        raise OSError(0, "; ".join(problems))

    def _make_in(self, place: str) -> None:
        self._place = open_directory_in_root(self._root, place)
        _check_place(self._root, self._place, self._owner.uid)
        _remove_stale(self._place)
        while self._fd < 0:
            self._name = f".rbtrace-{secrets.token_hex(8)}"
            os.mkdir(self._name, 0o700, dir_fd=self._place)
            self._fd = _open_folder(self._name, self._place)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if not os.fstat(self._fd).st_nlink:
                # Another keeper removed it before it was locked.
                os.close(self._fd)
                self._fd = -1
        for name, data in self._files.items():
            self._write(name, data)

    def _write(self, name: str, data: bytes | None) -> None:
        if data is None:
            self._made.append(name)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        try:
            self._made.append(name)
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)

    def _remove(self) -> None:
        if self._fd >= 0:
            # The process may create its file while we remove the others.
            for _ in range(_MOST_TRIES):
                if self._try_to_remove():
                    break
            os.close(self._fd)
        self._made.clear()
        if self._place >= 0:
            os.close(self._place)
        self._place = self._fd = -1

    def _try_to_remove(self) -> bool:
        for name in self._made:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._fd)
        try:
            os.rmdir(self._name, dir_fd=self._place)
        except OSError as error:
            return error.errno != errno.ENOTEMPTY
        return True

    def __exit__(self, *_: object) -> None:
        self._remove()


def _remove_stale(place: int) -> None:
    """Remove directories that killed keepers of this user left in ``place``."""
    for name in filter(_STALE.fullmatch, _names(place, _MOST_NAMES)):
        with suppress(OSError), _opened(name, place) as folder:
            if os.fstat(folder).st_uid == os.geteuid():
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for file in _names(folder, _MOST_FILES):
                    os.unlink(file, dir_fd=folder)
                os.rmdir(name, dir_fd=place)


def _names(folder: int, most: int) -> list[str]:
    """Return the first names in a directory; none if it cannot be read."""
    with suppress(OSError), _opened(".", folder) as fd, os.scandir(fd) as entries:
        return [entry.name for entry in islice(entries, most)]
    return []


@contextmanager
def _opened(name: str, place: int) -> Iterator[int]:
    folder = _open_folder(name, place)
    try:
        yield folder
    finally:
        os.close(folder)


def _open_folder(name: str, place: int) -> int:
    """Open a directory in ``place``, but not a link to one; raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=place)


def _prepare_socket(root: int, uid: int, sockets: Sequence[str]) -> str:
    """Return the first path whose directory, created if needed, is private, or "".

    An existing socket is removed: its server is gone, or it would have answered.
    """
    for path in sockets:
        directory, name = os.path.split(path)
        with suppress(OSError):
            folder = _private_directory(root, directory, uid)
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.close(folder)
            return path
    return ""


def _private_directory(root: int, path: str, uid: int) -> int:
    """Open a directory; raises OSError if others own it or can enter it."""
    parent, name = os.path.split(path)
    place = open_directory_in_root(root, parent)
    try:
        _check_owner(root, place, uid)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=place)
        folder = _open_folder(name, place)
    finally:
        os.close(place)
    status = os.fstat(folder)
    if status.st_uid != uid or status.st_mode & 0o077:
        os.close(folder)
        raise PermissionError(1, "other users can access it")
    return folder


def _check_place(root: int, place: int, uid: int) -> None:
    """Raise PermissionError unless the directory is trusted and allows execution."""
    _check_owner(root, place, uid)
    if os.fstatvfs(place).f_flag & os.ST_NOEXEC:
        raise PermissionError(1, "mounted noexec")


def _check_owner(root: int, place: int, uid: int) -> None:
    """Raise PermissionError if others than the user and root may move its files."""
    status = os.fstat(place)
    trusted: Sequence[int] = (0, uid, os.stat(".", dir_fd=root).st_uid)
    if status.st_uid not in trusted:
        raise PermissionError(1, f"it belongs to user {status.st_uid}")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(1, "others may change it, and it is not sticky")
