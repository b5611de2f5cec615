"""The command ``rbtrace-py``: finds the verb, and catches what goes wrong."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import textwrap
from types import FrameType
from typing import NoReturn

import click

from rbtrace_py import __version__
from rbtrace_py.errors import FilterError, RbtraceError, UsageError

COMMANDS = {
    "probes": "List the USDT probes of a process.",
    "count": "Count how often probes fire.",
    "latency": "Measure how long spans or pairs of probes take.",
    "trace": "Print every event of probes.",
    "values": "Show how the values of an operand are distributed.",
    "doctor": "Say what this machine and a target allow, and what is missing.",
    "completion": "Print the completion script of a shell.",
}
"""Every verb with its line in the overview; each is a module of this package."""


WITHOUT_TARGET = ("doctor", "completion")


class Verbs(click.Group):
    """Commands that are imported when they are used: a start takes its time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rbtrace_py.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in WITHOUT_TARGET and (ctx.obj or {}).get("command"):
            raise UsageError(f"{name} takes no command after --")
        return name, command, rest

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.version_option(__version__, prog_name="rbtrace-py")
def cli() -> None:
    """Trace running Ruby processes.

    A target is PID[,PID…], or instead of it --ps REGEX, or -- COMMAND… at the
    end. A probe is name, provider:name, or a glob of either.

    \b
    Examples:
      rbtrace-py probes 1234                  what can be traced
      rbtrace-py latency 1234 checkout        a histogram, at Ctrl-C
      rbtrace-py count 1234 'shop:*' -i 1     events each second
      rbtrace-py trace 1234 shop:order        every event as it happens

    Exit codes: 0 done, 1 failed, 2 usage, 3 not permitted, 4 no such target or
    probe, 5 too much was lost.
    """


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--``, and the command behind it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point; exits with the code of DESIGN's contract."""
    open_closed_streams()
    words, command = split_command(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = cli.main(
            words,
            prog_name="rbtrace-py",
            standalone_mode=False,
            obj={"command": command},
        )
        sys.stdout.flush()
        sys.exit(result if isinstance(result, int) else 0)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("rbtrace-py: interrupted", err=True)
        sys.exit(130)
    except RbtraceError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        drop_output()
        sys.exit(0)
    except OSError as error:
        place = f" {error.filename}" if error.filename else ""
        show_error(RbtraceError(f"{error.strerror or error}{place}"))
        drop_output()
        sys.exit(RbtraceError.exit_code)


def open_closed_streams() -> None:
    """A standard stream that was closed is nowhere, not the next file opened."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while (fd := os.open(os.devnull, os.O_RDWR)) < number:
                pass
            setattr(sys, name, os.fdopen(fd, "r" if number == 0 else "w"))


def drop_output() -> None:
    """What is still buffered cannot be written: let it go without a word."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_error(error: RbtraceError) -> None:
    """What is wrong and what to do, to standard error."""
    click.echo(wrapped(f"rbtrace-py: {error}", ""), err=True)
    if isinstance(error, FilterError):
        click.echo(f"  {error.text}\n  {' ' * error.position}^", err=True)
    for line in error.hint.splitlines():
        click.echo(wrapped(line, "  "), err=True)


def wrapped(line: str, margin: str) -> str:
    """A line broken between words so that it fits a terminal of 80 columns."""
    return textwrap.fill(
        line,
        79,
        initial_indent=margin,
        subsequent_indent=margin + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends as Ctrl-C does: with the result."""
    raise KeyboardInterrupt
