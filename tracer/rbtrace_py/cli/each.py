"""Commands that do the same with each of several processes."""

from __future__ import annotations

from collections.abc import Callable

from rbtrace_py.cli.main import show_error
from rbtrace_py.cli.options import say
from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.session.attaching import attach_all
from rbtrace_py.session.inside import processes
from rbtrace_py.session.targets import Targets


def asked(targets: Targets, attaches: bool) -> list[Process]:
    """The targets that live; with ``--attach`` each has the agent then."""
    found = processes(targets)
    if attaches:
        attach_all(found, say)
    return found


def each(
    name: str,
    targets: Targets,
    words: tuple[str, ...],
    work: Callable[[Process], None],
    attaches: bool = False,
) -> int:
    """Do ``work`` with every target, also after one with which that failed.

    Returns the exit code: of the worst of the errors, which were shown. A single
    target's is raised.
    """
    if targets.command is not None:
        raise UsageError(f"{name} is for what runs already, not for a command")
    if words:
        raise UsageError(f"{words[0]!r} is one word too many")
    found = asked(targets, attaches)
    codes = [0]
    for process in found:
        try:
            work(process)
        except RbtraceError as error:
            if len(found) == 1:
                raise
            show_error(error)
            codes.append(error.exit_code)
    return max(codes)
