"""A file that is there only when all of it is."""

from __future__ import annotations

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
_GZIP = 16 + zlib.MAX_WBITS


@contextmanager
def atomic_file(path: str) -> Iterator[Write]:
    """Writes to ``path``; on an error nothing of it is left, and what was there is.

    ``-`` is standard output, and devices and pipes are written to as they are. What
    ends in ``.gz`` is compressed. A new file is its owner's alone. Raises
    RbtraceError, which names the file, if it cannot be written.
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
    """A file beside it, which takes its place at the end."""
    path = os.path.realpath(path)
    try:
        fd, part = tempfile.mkstemp(".part", f".{os.path.basename(path)[:200]}.",
                                    os.path.dirname(path))  # fmt: skip
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
