"""Everything that can go wrong for a reason a user can act on.

Each error has the exit code the command ends with and, where there is one, a
hint that says what to do. They are caught once, in ``cli.main``.
"""

from __future__ import annotations

import resource
from typing import ClassVar

TOO_MUCH_LOST = 5
"""The exit code of a command whose answer lacks too much."""


class RbtraceError(Exception):
    """Base of all: ``str(error)`` says what is wrong, ``hint`` what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TooManyFiles(RbtraceError):
    """We may open no more files; what: that one, empty if it has no name."""

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
    """We may begin no further process or thread."""

    def __init__(self) -> None:
        super().__init__("no further process or thread may be started here", TASKS_HINT)


class UsageError(RbtraceError):
    """Words on the command line that make no sense together."""

    exit_code = 2


class FilterError(UsageError):
    """A filter that does not parse; ``position`` is where, from 0."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(message)
        self.text = text
        self.position = position


class NotPermitted(RbtraceError):
    """The kernel said no; the hint says which knob it is.

    root_helps: root may do what this user may not
    """

    exit_code = 3

    def __init__(
        self, message: str, hint: str = "", *, root_helps: bool = False
    ) -> None:
        super().__init__(message, hint)
        self.root_helps = root_helps


class NoSuchTarget(RbtraceError):
    """No process of that pid, or it is gone."""

    exit_code = 4


class NoSuchProbe(RbtraceError):
    """No probe of that name, ``word``, in the targets."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "", word: str = "") -> None:
        super().__init__(message, hint)
        self.word = word


class BadElf(RbtraceError):
    """A file that is not the ELF it says it is; says which check failed."""


class BpfError(RbtraceError):
    """The kernel refused a map, a program or an attachment."""


class UnreadableMemory(RbtraceError):
    """Memory of a target that cannot be read: not mapped (any more), or a lie."""


class NotRuby(RbtraceError):
    """A process or a core file without a Ruby in it."""

    exit_code = 4


class UnknownRuby(RbtraceError):
    """A Ruby whose structures are not known well enough to be read."""


class BadRecording(RbtraceError):
    """A file that is no recording, or one of a newer version."""


class VmNotStarted(NotRuby):
    """A Ruby that is still starting: it has no VM yet, but may soon have one."""
