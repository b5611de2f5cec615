"""History of the console, saved for the next session."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rbtrace_py.linux.procfs import read_all

MAX_LINES = 1000
_MAX_BYTES = 1 << 20
_MAX_LINE = 10_000


class History:
    """History lines in a file of the user, even under sudo. File errors are ignored.

    Only the user can read the file, because lines may contain passwords. A line that
    begins with a space is not saved, and neither are its continuation lines.
    """

    def __init__(self, name: str) -> None:
        self._uid, self._gid = _user()
        self._path = _directory(self._uid) / name
        self._last = ""
        self._is_secret = False

    def lines(self) -> list[str]:
        """Return the newest lines; cut the file to these if it is twice as long."""
        with suppress(OSError), self._as_user():
            data = self._read()
            found = data.decode("utf-8", "replace").splitlines()
            if len(found) > 2 * MAX_LINES or len(data) == _MAX_BYTES:
                self._cut(found[-MAX_LINES:])
            return found[-MAX_LINES:]
        return []

    def add(self, line: str, goes_on: bool = False) -> None:
        """Save ``line``, unless it repeats the one before or must not be saved.

        Args:
            line: Line as typed.
            goes_on: True if it continues the line added before; it may then be
                indented.
        """
        if not goes_on:
            self._is_secret = line.startswith(" ")
        is_odd = "\n" in line or len(line) > _MAX_LINE
        if not line.strip() or self._is_secret or is_odd or line == self._last:
            return
        self._last = line
        with suppress(OSError), self._as_user():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = self._open(os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(fd, line.encode("utf-8", "replace") + b"\n")
            finally:
                os.close(fd)

    @contextmanager
    def _as_user(self) -> Iterator[None]:
        """Act with the user's rights; raise OSError if the folder is not theirs."""
        if not _is_of(self._path.parent, self._uid):
            raise PermissionError
        user, group = os.geteuid(), os.getegid()
        try:
            if user == 0:
                os.setegid(self._gid)
                os.seteuid(self._uid)
            yield
        finally:
            if user == 0:
                os.seteuid(user)
                os.setegid(group)

    def _open(self, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != self._uid:
            os.close(fd)
            raise PermissionError
        if status.st_mode & 0o077:
            os.fchmod(fd, 0o600)
        return fd

    def _read(self) -> bytes:
        """Return the end of the file, at most _MAX_BYTES."""
        fd = self._open(os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            os.lseek(fd, max(0, size - _MAX_BYTES), os.SEEK_SET)
            return read_all(fd, _MAX_BYTES)
        finally:
            os.close(fd)

    def _cut(self, lines: list[str]) -> None:
        fd, name = tempfile.mkstemp(dir=self._path.parent)
        try:
            with open(fd, "w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise


def _user() -> tuple[int, int]:
    """Return our user and group, or under sudo its caller's."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and user.isdigit() and group.isdigit():
        return int(user), int(group)
    return os.geteuid(), os.getegid()


def _directory(uid: int) -> Path:
    """Return ``$XDG_STATE_HOME/rbtrace-py``, or a folder in the home of ``uid``."""
    place = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(place):
        place = os.path.join(_home(uid), ".local", "state")
    return Path(place) / "rbtrace-py"


def _home(uid: int) -> str:
    if uid == os.geteuid():
        return os.path.expanduser("~")
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/nonexistent"


def _is_of(path: Path, uid: int) -> bool:
    """Return whether ``path``, or the folder to create it in, belongs to the user.

    After su, the home may belong to another user.
    """
    for place in (path, *path.parents):
        with suppress(FileNotFoundError):
            return place.stat().st_uid == uid
    return False
