"""Helpers of commands that act on each of several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rbtrace_py.cli.common.messages import say, show_error
from rbtrace_py.cli.common.options import (
    AttachOption,
    MayAttach,
    OutputOptions,
    YesOption,
)
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.waiting import waiting_for
from rbtrace_py.errors import NoSuchTarget, NotRuby, RbtraceError, UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.style import Style
from rbtrace_py.session.inside.attach import attach_all
from rbtrace_py.session.inside.commands import ask_each, processes
from rbtrace_py.session.targets.notes import skipped
from rbtrace_py.session.targets.targets import Targets

T = TypeVar("T")


class AgentReportOptions(AttachOption, YesOption, OutputOptions):
    """Options of commands that ``show`` the agents' answers."""


def check_words(
    name: str, targets: Targets, words: tuple[str, ...], most: int = 0, hint: str = ""
) -> None:
    """Check the words of a command that acts on running processes.

    Args:
        name: Name of the command.
        targets: Target processes.
        words: Words of the command line.
        most: Maximum number of words.
        hint: Hint for surplus words.

    Raises:
        UsageError: There are too many words, or a program is to be started.
    """
    if targets.command is not None:
        raise UsageError(f"{name} works on running processes, not on a command")
    if len(words) > most:
        raise UsageError(f"too many arguments: {words[most]!r}", hint)


def with_agent(targets: Targets, options: MayAttach | None = None) -> list[Process]:
    """Return the live targets; with ``--attach``, load the agent into each.

    Children that cannot load the agent are left out.
    """
    if options is None or not options.attaches:
        return processes(targets)
    with waiting_for(targets.pids) as waiting:
        return attach_all(targets, waiting.before(say), waiting.before(options.confirm))


def leaves_out(targets: Targets, process: Process, error: RbtraceError) -> bool:
    """Return whether a child has exited or is unreachable, and print a note if so.

    Args:
        targets: Target processes.
        process: Process for which an action failed.
        error: The error of the action.
    """
    is_out = isinstance(error, (NotRuby, NoSuchTarget)) and targets.has_joined(process)
    if is_out:
        say(skipped(process.pid, error))
    return is_out


def show(
    targets: Targets,
    options: AgentReportOptions,
    ask: Callable[[Process], T],
    document: Callable[[int, T], dict[str, Any]],
    lines: Callable[[int, T, Style], Iterable[str]],
) -> None:
    """Query each target, and print all answers as ``--json`` and ``-o`` select.

    Args:
        targets: Target processes.
        options: Options of the command.
        ask: Function that queries a process.
        document: Function that returns the JSON document of an answer.
        lines: Function that returns the lines of an answer.
    """
    found = with_agent(targets, options)
    with waiting_for([process.pid for process in found]) as waiting:
        answers = ask_each(targets, found, ask, waiting.before(say))
    with opened(options.output) as out:
        for number, (process, answer) in enumerate(answers):
            if options.as_json:
                out.lines([dumps(document(process.pid, answer))])
            else:
                out.lines([""] if number else [])
                out.lines(lines(process.pid, answer, out.style))


def each(
    name: str,
    targets: Targets,
    words: tuple[str, ...],
    work: Callable[[Process], None],
    options: MayAttach | None = None,
) -> int:
    """Call ``work`` for every target, even after it failed for one.

    Args:
        name: Name of the command.
        targets: Target processes.
        words: Words of the command line, which must be empty.
        work: Function that acts on a process.
        options: Options with ``--attach``; None if the command lacks it.

    Returns:
        The highest exit code of the errors, which were shown; 0 if there were none.

    Raises:
        RbtraceError: ``work`` failed for a single target.
    """
    check_words(name, targets, words)
    found = with_agent(targets, options)
    codes = [0]
    for process in found:
        try:
            work(process)
        except RbtraceError as error:
            if len(found) == 1:
                raise
            if leaves_out(targets, process, error):
                continue
            show_error(error)
            codes.append(error.exit_code)
    return max(codes)
