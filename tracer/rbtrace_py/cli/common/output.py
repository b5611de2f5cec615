"""Destination of a command's output: standard output or a file, and the status line."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rbtrace_py.errors import RbtraceError
from rbtrace_py.report.style import Style

if TYPE_CHECKING:
    pass

STANDARD_OUTPUT = "standard output"


class Output:
    """Stream with a name and a style. Lines are flushed when they are written.

    Raises:
        RbtraceError: The stream cannot be written, as on a full disk. The error names
            it.
        BrokenPipeError: The reader has closed the stream.
    """

    def __init__(self, stream: TextIO, name: str = STANDARD_OUTPUT) -> None:
        self.stream = stream
        self.name = name
        self.style = Style.for_stream(stream)

    def lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line + "\n")
        self.flush()

    def write(self, text: str) -> None:
        try:
            self.stream.write(text)
        except OSError as error:
            raise cannot_write(self.name, error) from error

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            raise cannot_write(self.name, error) from error


@contextmanager
def opened(path: str | None, append: bool = False) -> Iterator[Output]:
    """Open standard output, or the file of ``-o``, to which ``append`` adds."""
    if path is None or path == "-":
        # Bytes of a target that are not text must not end the report.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        yield Output(sys.stdout)
        return
    with create(path, "utf-8", append) as file:
        yield Output(file, path)


def create(path: str, encoding: str, append: bool = False) -> TextIO:
    """Open a user's file for writing text; raises as ``create_bytes`` does."""
    return io.TextIOWrapper(create_bytes(path, append), encoding, errors="replace")


def create_bytes(path: str, append: bool = False) -> io.BufferedWriter:
    """Open a user's file for writing.

    Args:
        path: Path of the file.
        append: True to keep the content of the file.

    Raises:
        RbtraceError: The file cannot be opened. Writing to it or closing it may raise
            the same error, which names the file.
    """
    try:
        return io.BufferedWriter(_UserFile(path, "a" if append else "w"))
    except OSError as error:
        raise cannot_write(path, error) from error


class _UserFile(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise cannot_write(str(self.name), error) from error


def cannot_write(name: str, error: OSError) -> Exception:
    """Return the exception to raise for an error of writing."""
    if isinstance(error, BrokenPipeError):
        return error
    to = "to " if name == STANDARD_OUTPUT else ""
    return RbtraceError(f"cannot write {to}{name}: {error.strerror}")


def is_pipe(stream: TextIO) -> bool:
    """Return whether the stream is a pipe, whose reader may stop before the end."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
