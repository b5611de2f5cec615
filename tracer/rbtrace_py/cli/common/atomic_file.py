"""Files that appear only when they are complete."""

from __future__ import annotations

import fcntl
import glob
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from rbtrace_py.cli.common.output import cannot_write
from rbtrace_py.errors import UsageError

Write = Callable[[bytes], None]
_PART = ".rbtrace-part"
"""Extension of incomplete files."""
_GZIP = 16 + zlib.MAX_WBITS


@contextmanager
def atomic_file(path: str) -> Iterator[Write]:
    """Write to ``path``; after an error, the old file is unchanged.

    ``-`` is standard output. Devices and pipes are written directly. A path that ends
    in ``.gz`` is compressed. Only the owner can read a new file. A killed writer leaves
    a part, which the next writer in that folder removes.

    Raises:
        RbtraceError: The file cannot be written. The error names it.
    """
    try:
        if path == "-":
            yield from _compressed(sys.stdout.buffer, path)
        elif _is_special(path):
            with _closed(_opened(path)) as file:
                yield from _compressed(file, path)
        else:
            yield from _replaced(path)
    except _Unwritten as error:
        raise cannot_write(_name(path), error.cause) from error


class _Unwritten(Exception):
    def __init__(self, cause: OSError) -> None:
        self.cause = cause


def _name(path: str) -> str:
    return "standard output" if path == "-" else path


def _is_special(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a directory; name a file")
    return not stat.S_ISREG(mode)


def _replaced(path: str) -> Iterator[Write]:
    """Write a part beside the file, and rename it to the file at the end."""
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    _remove_stale(folder)
    try:
        fd, part = _new_part(folder, name)
    except OSError as error:
        raise _Unwritten(error) from error
    try:
        with _closed(os.fdopen(fd, "wb")) as file:
            yield from _compressed(file, path)
            try:
                os.replace(part, path)
            except OSError as error:
                raise _Unwritten(error) from error
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def _new_part(folder: str, name: str) -> tuple[int, str]:
    """Return the descriptor and path of a new part, locked if possible."""
    while True:
        fd, part = tempfile.mkstemp(_PART, f".{name[:200]}.", folder)
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return fd, part
        os.close(fd)  # Another writer has removed it, because it was not locked yet.


def _remove_stale(folder: str) -> None:
    """Remove parts of killed writers, whose locks are free."""
    for part in glob.glob(os.path.join(glob.escape(folder), f".*{_PART}")):
        with suppress(OSError), open(part, "rb", opener=_open_no_link) as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(part)


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _opened(path: str) -> BinaryIO:
    try:
        return open(path, "wb")
    except OSError as error:
        raise _Unwritten(error) from error


@contextmanager
def _closed(file: BinaryIO) -> Iterator[BinaryIO]:
    try:
        yield file
    finally:
        with suppress(OSError):
            file.close()


def _compressed(file: BinaryIO, path: str) -> Iterator[Write]:
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP) if path.endswith(".gz") else None

    def put(data: bytes) -> None:
        try:
            file.write(data)
        except OSError as error:
            raise _Unwritten(error) from error

    if packer is None:
        yield put
    else:
        yield lambda data: put(packer.compress(data))
        put(packer.flush())
    try:
        file.flush()
    except OSError as error:
        raise _Unwritten(error) from error
