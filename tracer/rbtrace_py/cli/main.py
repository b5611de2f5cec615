"""The command ``rbtrace-py``: runs the command's module, and reports errors."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn, TextIO

import click

from rbtrace_py import __version__
from rbtrace_py.cli.common.messages import show_error
from rbtrace_py.cli.common.stop import Interrupted, is_ignored
from rbtrace_py.errors import (
    NotPermitted,
    RbtraceError,
    TooManyFiles,
    TooManyTasks,
    UsageError,
)

GROUPS = {
    "Stacks": {
        "top": "Watch the busiest methods and threads, live.",
        "dump": "Print every thread's stack once; also from a core file.",
        "stacks": "Sample stacks; print them folded or in another format.",
        "record": "Record stacks to a file.",
        "report": "Show a recording, or compare two.",
    },
    "Probes": {
        "probes": "List the USDT probes of a process.",
        "count": "Count how often probes fire.",
        "latency": "Measure how long methods, spans or pairs of probes take.",
        "trace": "Print each probe event.",
        "values": "Show the distribution of an argument's values.",
    },
    "Methods": {
        "calls": "Print every method call as it happens, nested (agent).",
        "rbtrace": "Accept rbtrace's flags.",
    },
    "Inside": {
        "eval": "Run Ruby code in a process (agent).",
        "console": "Open a Ruby console in a process, like irb (agent).",
        "backtraces": "Print every thread's backtrace as Ruby reports it (agent).",
        "memory": "Show a process's memory usage (agent).",
        "heapdump": "Write all objects of a process to a file (agent).",
        "shapesdump": "Write all object shapes of a process to a file (agent).",
        "fork": "Fork a stopped copy of a process for a debugger (agent).",
    },
    "Setup": {
        "doctor": "Check what this machine and a process allow.",
        "layout": "Show a process's Ruby and the source of each offset.",
        "attach": "Load the agent into a running process.",
        "detach": "Stop the agent in a process.",
        "completion": "Print a shell completion script.",
    },
}
"""Commands with their lines in the overview, by group. Each is a module of ``cli``."""

COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}

WITHOUT_TARGET = ("report", "doctor", "completion")

INTERRUPTED = 130

_HELP = ["-h", "--help"]

_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Exception of click 8.2 and later."""


class Unread(Exception):
    """The reader of our output has closed it."""


@contextmanager
def _our_own_ends() -> Iterator[None]:
    """Convert exceptions that click would turn into an exit code or a blank line."""
    try:
        yield
    except BrokenPipeError as error:
        raise Unread from error
    except KeyboardInterrupt as error:
        raise Interrupted from error


class Verbs(click.Group):
    """Commands that are imported when they are used, because importing all is slow."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rbtrace_py.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        # Do not pass it by ctx: click caches the help option of the first context.
        command.context_settings.setdefault("help_option_names", _HELP)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_known = args[0] in COMMANDS or args[0].startswith("-")
        if not is_known and not ctx.resilient_parsing:
            raise _no_such_command(args[0])
        name, command, rest = super().resolve_command(ctx, args)
        if name in WITHOUT_TARGET and (ctx.obj or {}).get("command"):
            raise UsageError(f"{name} takes no command after --")
        return name, command, rest

    def make_context(self, *arguments: Any, **rest: Any) -> click.Context:
        with _our_own_ends():
            return super().make_context(*arguments, **rest)

    def invoke(self, ctx: click.Context) -> Any:
        with _our_own_ends():
            return super().invoke(ctx)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        width = max(map(len, COMMANDS))
        for name, commands in GROUPS.items():
            with formatter.section(name):
                formatter.write_dl(
                    [(f"{verb:{width}}", line) for verb, line in commands.items()]
                )


def _no_such_command(word: str) -> UsageError:
    close = difflib.get_close_matches(word, COMMANDS)
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    return UsageError(
        f"no such command: {word}", f"{meant}See rbtrace-py --help for all of them."
    )


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": _HELP, "max_content_width": 80},
)
@click.version_option(__version__, prog_name="rbtrace-py")
def cli() -> None:
    """Trace running Ruby processes.

    A target is PID[,PID…], --ps REGEX, or -- COMMAND… at the end of the line. A
    probe is name, provider:name, or a glob of either.

    \b
    Examples:
      rbtrace-py probes 1234                  list the probes
      rbtrace-py latency 1234 checkout        a histogram, on Ctrl-C
      rbtrace-py count 1234 'shop:*' -i 1     events per second
      rbtrace-py trace 1234 shop:order        every event as it happens
      rbtrace-py stacks 1234                  where time is spent, on Ctrl-C

    Exit codes: 0 success, 1 failure, 2 usage error, 3 not permitted, 4 no such
    target or probe, 5 too many losses. If a COMMAND fails, its exit code
    replaces 0.
    """


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split the words before ``--`` from the command after it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command, and exit with one of the codes that --help lists."""
    try:
        open_closed_streams()
        code = _run(sys.argv[1:] if arguments is None else arguments)
        _flush()
        _ignore_ctrl_c()
    except BaseException as error:
        _ignore_ctrl_c()
        code = _code_of(error)
        drop_output()
    sys.exit(code)


def _ignore_ctrl_c() -> None:
    """Ignore Ctrl-C from here on: all output is written, or will be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(arguments: list[str]) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if not is_ignored(number):
            signal.signal(number, _interrupt)
    words, command = split_command(arguments)
    if "--" in arguments and not command:
        raise UsageError(
            "no command after --",
            "Give the program to start: -- ruby a.rb",
        )
    result = cli.main(
        words,
        prog_name="rbtrace-py",
        standalone_mode=False,
        obj={"command": command},
    )
    return result if isinstance(result, int) else 0


def _flush() -> None:
    """Flush the output before reporting success."""
    try:
        sys.stdout.flush()
    except OSError as error:
        from rbtrace_py.cli.common.output import STANDARD_OUTPUT, cannot_write

        raise cannot_write(STANDARD_OUTPUT, error) from error


def _code_of(error: BaseException) -> int:
    """Print an error, if it has a message, and return its exit code."""
    try:
        return _said(error)
    except OSError:
        # Standard error is closed, as after a hangup of the terminal.
        return RbtraceError.exit_code


def _said(error: BaseException) -> int:
    if isinstance(error, (Unread, BrokenPipeError)):
        return 0
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        if isinstance(error, click.NoSuchOption) and error.option_name == "--json":
            error = _json_elsewhere(error.ctx)
        if isinstance(error, _NO_ARGUMENTS):
            error.show()  # Print the complete help.
            return UsageError.exit_code
        error = _of_click(error)
    if isinstance(error, (click.Abort, Interrupted, KeyboardInterrupt)):
        click.echo("rbtrace-py: interrupted", err=True)
        return INTERRUPTED
    if isinstance(error, OSError):
        error = _of_system(error)
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        error = TooManyTasks()
    if not isinstance(error, RbtraceError):
        raise error
    show_error(error)
    if isinstance(error, NotPermitted) and error.root_helps and os.geteuid() != 0:
        click.echo(f"  {_with_sudo()}", err=True)
    return error.exit_code


def _of_system(error: OSError) -> RbtraceError:
    if error.errno == errno.EMFILE:
        return TooManyFiles(str(error.filename or ""))
    place = f"{error.filename}: " if error.filename else ""
    return RbtraceError(f"{place}{error.strerror or error}")


_SECOND_SENTENCE = re.compile(r"\. (?=Did you mean|Choose from|\()")
"""Start of click's second sentence. The first one may contain a user's words."""


def _of_click(error: click.ClickException) -> RbtraceError:
    """Convert a usage error of click to ours: a message and a hint."""
    message = " ".join(error.format_message().split())
    what, *more = _SECOND_SENTENCE.split(message.removesuffix("."), maxsplit=1)
    rest = " ".join(more)
    what = what[:1].lower() + what[1:]
    if not isinstance(error, click.UsageError):
        return RbtraceError(what, rest)
    rest = rest.strip("()")
    end = "" if not rest else " " if rest.endswith("?") else ". "
    path = error.ctx.command_path if error.ctx is not None else "rbtrace-py"
    return UsageError(what, f"{rest}{end}See {path} --help.")


def _json_elsewhere(ctx: click.Context | None) -> click.UsageError:
    """Return the error for an unknown ``--json``, with a hint at the right option."""
    meant = ""
    if ctx is not None and ctx.command.name == "top":
        meant = "rbtrace-py stacks PID --format json"
    elif ctx is not None:
        options = (option for each in ctx.command.params for option in each.opts)
        meant = "--format json" if "--format" in options else ""
    hint = f". Did you mean '{meant}'?" if meant else ""
    return click.UsageError(f"No such option '--json'{hint}", ctx)


def open_closed_streams() -> None:
    """Open closed standard streams, so that no other file gets their descriptors.

    Writing to a closed standard output still fails, because a result must not get lost.
    Writing to a closed standard error does not.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            flags = os.O_RDONLY if name == "stdout" else os.O_RDWR
            while (fd := os.open(os.devnull, flags)) < number:
                pass
            setattr(sys, name, _stream(name, fd))


def _stream(name: str, fd: int) -> TextIO:
    if name == "stdout":
        return io.TextIOWrapper(io.BufferedWriter(_ClosedOutput(fd, "w")))
    return os.fdopen(fd, "r" if name == "stdin" else "w")


class _ClosedOutput(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise RbtraceError("standard output is closed") from error


def drop_output() -> None:
    """Drop buffered output that cannot be written."""
    try:
        sys.stdout.flush()
    except (OSError, RbtraceError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _with_sudo() -> str:
    """Return this command as root, to type. sudo's PATH lacks virtual environments."""
    started = shutil.which(sys.argv[0])
    program = started or os.path.join(os.path.dirname(sys.executable), "rbtrace-py")
    return shlex.join(["sudo", os.path.abspath(program), *sys.argv[1:]])


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Treat SIGTERM and SIGHUP as Ctrl-C."""
    raise KeyboardInterrupt
