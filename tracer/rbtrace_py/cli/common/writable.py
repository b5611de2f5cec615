"""Check that a file can be written, before its content exists."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

import click

from rbtrace_py.cli.common.output import cannot_write
from rbtrace_py.errors import UsageError


class WritableFile(click.Path):
    """A file that a command writes at its end; - is standard output.

    Args:
        or_folder: True to accept a folder as well.
    """

    def __init__(self, or_folder: bool = False) -> None:
        super().__init__(dir_okay=or_folder, writable=True, allow_dash=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not os.fsdecode(value):
            raise UsageError("the name of the file is empty", "Name a file")
        path = super().convert(value, param, ctx)
        if not (self.dir_okay and os.path.isdir(path)):
            check_writable(os.fsdecode(path))
        return path


def check_writable(path: str) -> None:
    """Raise RbtraceError if ``path`` cannot be written. Change nothing."""
    if path == "-":
        return
    try:
        _try(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def check_folder() -> None:
    """Raise RbtraceError if this folder, where unnamed files go, is not writable."""
    check_writable(f"rbtrace-{os.getpid()}")


def _try(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        _try_new(os.path.realpath(path))
        return
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a directory; name a file")
    if stat.S_ISREG(mode):
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    elif not os.access(path, os.W_OK):
        # Do not open a pipe: its reader would see the end of it.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _try_new(path: str) -> None:
    """Create the file and remove it: for root, a folder's mode does not decide."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    os.close(os.open(path, flags, 0o600))
    os.unlink(path)
