"""Errors that a user can act on.

Each error has the exit code of the command and, if possible, a hint that tells the user
what to do. ``cli.main`` catches them in one place.
"""

from __future__ import annotations

import resource
from typing import ClassVar

TOO_MUCH_LOST = 5
"""Exit code of a command that lost too much."""


def loss_exit_code(shown: int, missing: int, max_percent: float = 50.0) -> int:
    """Return TOO_MUCH_LOST if a result lacks too many events, else 0.

    Args:
        shown: Number of events in the result.
        missing: Number of events that are missing from it.
        max_percent: Largest acceptable share of missing events. The default accepts as
            many missing events as shown ones.
    """
    is_too_much = 100 * missing > max_percent * (shown + missing)
    return TOO_MUCH_LOST if is_too_much else 0


class RbtraceError(Exception):
    """Base class: ``str(error)`` describes the error, ``hint`` what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TooManyFiles(RbtraceError):
    """The limit of open files is reached.

    ``what`` names the file that could not be opened; empty if it has no name.
    """

    def __init__(self, what: str) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = f"too many open files (ulimit -n is {limit})"
        super().__init__(
            f"{what}: {text}" if what else text,
            "Raise the limit of open files (RLIMIT_NOFILE) first: `ulimit -n 4096`",
        )


TASKS_HINT = (
    "Raise the limit of processes and threads: pids.max of the cgroup (TasksMax= of"
    " systemd, --pids-limit of Docker), or `ulimit -u`"
)


class TooManyTasks(RbtraceError):
    """The limit of processes and threads is reached."""

    def __init__(self) -> None:
        super().__init__("cannot start another process or thread", TASKS_HINT)


class UsageError(RbtraceError):
    """Invalid or conflicting arguments."""

    exit_code = 2


class FilterError(UsageError):
    """A malformed filter; ``position`` is the index of the fault, from 0."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message)
        self.text = text
        self.position = position


class NotPermitted(RbtraceError):
    """The kernel denied permission; the hint names the setting to change.

    ``root_helps`` is True if root has the permission.
    """

    exit_code = 3

    def __init__(
        self, message: str, hint: str = "", *, root_helps: bool = False
    ) -> None:
        super().__init__(message, hint)
        self.root_helps = root_helps


class NoSuchTarget(RbtraceError):
    """The process does not exist, or has exited."""

    exit_code = 4


class NoSuchProbe(RbtraceError):
    """The targets have no probe named ``word``."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "", word: str = "") -> None:
        super().__init__(message, hint)
        self.word = word


class BadElf(RbtraceError):
    """A malformed ELF file; the message names the failed check."""


class BpfError(RbtraceError):
    """The kernel rejected a map, a program, or an attachment."""


class UnreadableMemory(RbtraceError):
    """Unreadable memory of a target: an unmapped or corrupt address."""


class NotRuby(RbtraceError):
    """A process or core file that does not contain Ruby."""

    exit_code = 4


class UnknownRuby(RbtraceError):
    """A Ruby whose structures are not known well enough to read them."""


class BadRecording(RbtraceError):
    """A file that is not a recording, or has a newer version."""


class VmNotStarted(NotRuby):
    """A Ruby that is still starting: its VM does not exist yet, but may soon."""
