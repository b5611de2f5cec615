"""Options that name target processes, and the choice of these processes."""

from __future__ import annotations

import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rbtrace_py.cli.common.messages import say
from rbtrace_py.cli.common.option_fields import (
    OptionGroup,
    argument,
    option,
    parameters,
)
from rbtrace_py.cli.common.pid_completion import complete_pid
from rbtrace_py.errors import NoSuchProbe, NoSuchTarget, RbtraceError, UsageError
from rbtrace_py.linux import stop_signal
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import cut
from rbtrace_py.session.targets.targets import Targets, parse_pids

if TYPE_CHECKING:
    from rbtrace_py.linux.processes import Candidate

Options = TypeVar("Options")

_CMDLINE_COLUMNS = 60

_SIGNALLED = 128
"""Shells add this to a signal's number for an exit code."""

_PIDS = re.compile(r"\d+(,\d+)*")


def ps_option() -> Any:
    return option(
        "--ps",
        metavar="REGEX",
        help="Target the process whose command line matches, instead of PID. Prefers"
        " Ruby processes; asks if several match.",
    )


class TargetOptions(OptionGroup):
    """The words of a command, and options that name its targets."""

    words: tuple[str, ...] = argument(nargs=-1, shell_complete=complete_pid)
    pid_words: tuple[str, ...] = option(
        "-p",
        "--pid",
        metavar="PID[,PID]",
        shell_complete=complete_pid,
        help="Same as PID.",
    )
    ps: str | None = ps_option()
    subprocesses: bool = option("--subprocesses", help="Include child processes.")


class _Sayer(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def _spoken_log() -> Iterator[None]:
    """Print the package's log, which reports side effects on the process."""
    logger, handler = logging.getLogger("rbtrace_py"), _Sayer()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def target_command(
    name: str,
    words_metavar: str,
    options: Callable[..., Options],
    may_be_numbers: bool = False,
) -> Callable[
    [Callable[[Targets, tuple[str, ...], Options], int | None]], click.Command
]:
    """Return a decorator that makes a command of a function.

    The command calls the function with the targets, the other words, and the options.
    The first word is PID[,PID…] unless --ps or -- COMMAND replaces it.

    Args:
        name: Name of the command.
        words_metavar: All words, as --help shows them.
        options: Dataclass of the command's own options.
        may_be_numbers: True if another word can look like a PID.
    """

    def decorate(
        function: Callable[[Targets, tuple[str, ...], Options], int | None],
    ) -> click.Command:
        def wrapper(
            words: tuple[str, ...],
            pid_words: tuple[str, ...],
            ps: str | None,
            subprocesses: bool,
            **given: Any,
        ) -> int:
            named = TargetOptions(
                words=words, pid_words=pid_words, ps=ps, subprocesses=subprocesses
            )
            with opened_targets(named, may_be_numbers) as (targets, rest):
                code = function(targets, rest, options(**given))
                return code or _command_status(targets)

        run = parameters(options)(update_wrapper(wrapper, function))
        words = parameters(TargetOptions, words={"metavar": words_metavar})
        return click.command(name)(words(run))

    return decorate


@contextmanager
def opened_targets(
    named: TargetOptions, may_be_numbers: bool = False
) -> Iterator[tuple[Targets, tuple[str, ...]]]:
    """Yield the targets, and the words that are not a target.

    Args:
        named: Words and options that name targets.
        may_be_numbers: True if another word can look like a PID.
    """
    command = (click.get_current_context().obj or {}).get("command")
    words, ps = named.words, named.ps
    given = {"--ps": ps is not None, "--pid": named.pid_words, "-- COMMAND": command}
    names = [name for name, value in given.items() if value]
    if len(names) > 1:
        raise UsageError(f"{names[0]} and {names[1]} cannot be combined")
    if words and names and not may_be_numbers and _PIDS.fullmatch(words[0]):
        raise UsageError(
            f"{names[0]} already names the target; unexpected {words[0]}",
            "Name the target once",
        )
    if command:
        targets = Targets.from_command(command, named.subprocesses)
    else:
        if ps is not None:
            pids = choose_pids(ps, named.subprocesses)
        elif named.pid_words:
            pids = parse_pids(",".join(named.pid_words))
        elif words:
            pids, words = parse_pids(words[0]), words[1:]
        else:
            raise click.UsageError("missing target: PID, --ps or -- COMMAND")
        targets = Targets.from_pids(pids, named.subprocesses)
    try:
        with _spoken_log():
            yield targets, words
    except RbtraceError as error:
        _command_status(targets)
        if isinstance(error, NoSuchProbe):
            from rbtrace_py.session.probes.hints import explain

            explain(error, targets.processes.values())
        raise
    finally:
        targets.close()


def _command_status(targets: Targets) -> int:
    """Report a failed COMMAND, and return its exit code, or 0.

    A program has not failed if we ended it, or if Ctrl-C reached both of us.
    """
    status = targets.status
    if not status or stop_signal.has_come():
        return 0
    if status > 0:
        say(f"the program exited with status {status}")
        return status
    known = {each.value: each.name for each in signal.Signals}
    say(f"the program was ended by {known.get(-status, f'signal {-status}')}")
    return _SIGNALLED - status


def choose_pids(regex: str, subprocesses: bool) -> list[int]:
    """Return the pids that --ps selects, after asking the user if several match.

    Args:
        regex: Regular expression for command lines.
        subprocesses: True if children are traced too. Then matches that are one
            program's processes are selected together.

    Raises:
        NoSuchTarget: No process matches.
        UsageError: Several match, and standard input is not a terminal.
    """
    from rbtrace_py.session.targets.choosing import check_permitted, choices, families

    choice = choices(regex)
    found = choice.candidates
    groups = families(found) if len(found) > 1 else []
    if subprocesses and groups:
        if len(groups) == 1:
            return [one.pid for one in groups[0]]
        found = [head for group in groups for head in group]
    if not found:
        raise NoSuchTarget(f"no process matches {regex!r}")
    style = Style.for_stream(sys.stderr)
    if len(found) == 1:
        if choice.passed_over:
            what = (
                "is the only one running Ruby"
                if choice.are_ruby
                else ("is the parent of the others")
            )
            number = choice.passed_over + 1
            line = cut(found[0].cmdline, _CMDLINE_COLUMNS, style)
            say(f"{number} processes match; {found[0].pid} {what}: {line}")
        return [found[0].pid]
    if not choice.are_ruby:
        check_permitted(found)
    room = style.width - 14
    listing = [f"{c.pid:>8}  {cut(c.cmdline, room, style)}" for c in found]
    listing += _of_one_family(groups)
    if not sys.stdin.isatty():
        listing.append("Give PIDs (PID,PID), or a more specific REGEX")
        what = "Ruby processes" if choice.are_ruby else "processes"
        raise UsageError(f"{len(found)} {what} match {regex!r}", "\n".join(listing))
    click.echo("\n".join(listing), err=True)
    pids = [str(candidate.pid) for candidate in found]
    return [int(click.prompt("PID", type=click.Choice(pids), err=True))]


def _of_one_family(groups: Sequence[Sequence[Candidate]]) -> list[str]:
    """Return lines of advice if all matches are processes of one program."""
    if len(groups) != 1:
        return []
    heads = groups[0]
    takes_all = any(
        parameter.name == "subprocesses"
        for parameter in click.get_current_context().command.params
    )
    advice = ["Add --subprocesses for all of them"] if takes_all else []
    if len(heads) == 1:
        return [f"{heads[0].pid} is the parent of the others", *advice]
    return advice
