"""Options that several commands share, each declared once."""

from __future__ import annotations

import fcntl
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rbtrace_py.cli.common.parameter_types import Seconds
from rbtrace_py.cli.common.session_start import READY_FD
from rbtrace_py.cli.common.writable import WritableFile
from rbtrace_py.errors import UsageError
from rbtrace_py.report.file_formats import (
    check_text_file,
    is_json_file,
    is_recording_file,
)
from rbtrace_py.report.style import Style
from rbtrace_py.session.limits import Limits

if TYPE_CHECKING:
    from rbtrace_py.rubyvm.saved import SavedLayout
    from rbtrace_py.session.probes.query import ProbeOptions

# What only commands with probes need is imported where it is: it is most of what
# the others would start up with.
# Nobody compares options or prints them, and making a class able to takes its time.

Command = TypeVar("Command", bound=Callable[..., Any])
Options = TypeVar("Options")
Result = TypeVar("Result")


def chain(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def typed(
    options: Callable[..., Options],
) -> Callable[[Callable[[Options], Result]], Callable[..., Result]]:
    """Give a command all its options as one object."""

    def decorate(function: Callable[[Options], Result]) -> Callable[..., Result]:
        return update_wrapper(lambda **given: function(options(**given)), function)

    return decorate


filter_option = click.option(
    "--filter",
    "filter_",
    metavar="EXPR",
    help="Only matching events, e.g. 'id > 10 and sku == \"abc\"'.",
)

wait_option = click.option(
    "--wait", is_flag=True, help="Wait for probes that do not exist yet."
)


@dataclass(frozen=True, eq=False, repr=False)
class YesOption:
    """``yes_option``."""

    yes: bool

    @property
    def confirm(self) -> Callable[[str], bool]:
        return (lambda text: True) if self.yes else _ask


yes_option = click.option(
    "--yes",
    is_flag=True,
    help="Skip confirmation, even for operations that can harm the process.",
)


@dataclass(frozen=True, eq=False, repr=False)
class LimitOptions:
    """``limit_options``."""

    duration: float | None
    count: int | None

    @property
    def limits(self) -> Limits:
        return Limits(self.duration, self.count)


def _keep_ready_fd(
    context: click.Context, option: click.Parameter, number: int | None
) -> None:
    if number is not None:
        try:
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        except OSError as error:
            raise click.BadParameter(f"descriptor {number} is not open") from error
        if mode == os.O_RDONLY:
            raise click.BadParameter(f"descriptor {number} is not open for writing")
    context.meta[READY_FD] = number


limit_options = chain(
    click.option(
        "-d",
        "--duration",
        type=Seconds(),
        help="Stop after TIME (10, 500ms, 1h30m, 7d).",
    ),
    click.option(
        "-n", "--count", type=click.IntRange(1), help="Stop after this many events."
    ),
    click.option(
        "--ready-fd",
        metavar="N",
        type=click.IntRange(3),
        envvar="RBTRACE_READY_FD",
        expose_value=False,
        callback=_keep_ready_fd,
        help="Write a line to file descriptor N, and close it, when tracing has begun.",
    ),
)


@dataclass(frozen=True, eq=False, repr=False)
class IntervalOptions(LimitOptions):
    """``limit_options`` and ``interval_option``."""

    interval: float | None

    @property
    def limits(self) -> Limits:
        return Limits(self.duration, self.count, self.interval)


interval_option = click.option(
    "-i",
    "--interval",
    type=Seconds(),
    help="Print a report every TIME, covering that interval.",
)


@dataclass(frozen=True, eq=False, repr=False)
class EventOptions(YesOption, LimitOptions):
    """Options of every command that asks probes."""

    filter_: str | None
    wait: bool

    @property
    def probe_options(self) -> ProbeOptions:
        """The sessions' options."""
        from rbtrace_py.session.probes.query import ProbeOptions

        return ProbeOptions(
            filter=self.filter_,
            wait=self.wait,
            wait_seconds=self.duration,
            confirm=self.confirm,
        )


@dataclass(frozen=True, eq=False, repr=False)
class GroupingOptions(EventOptions, IntervalOptions):
    """``grouping_options``."""

    by: str | None
    max_keys: int

    @property
    def probe_options(self) -> ProbeOptions:
        return replace(super().probe_options, by=self.by, max_keys=self.max_keys)


class _KeyOption(click.Option):
    """``--by``, which may be given once.

    click would take the last of several keys. With ``multiple``, the value would be a
    tuple for all that read it.
    """

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        parser.add_option(self, self.opts, "by", action="append")

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        keys = opts.get("by")
        if not keys:
            return super().handle_parse_result(ctx, opts, args)
        if len(keys) > 1:
            raise UsageError(
                f"--by takes one key, not {' and '.join(keys)}",
                f"Give the other as a filter: --by {keys[0]} --filter '{keys[1]} == …'",
            )
        return super().handle_parse_result(ctx, {**opts, "by": keys[0]}, args)


grouping_options = chain(
    click.option(
        "--by",
        metavar="ARG",
        cls=_KeyOption,
        help="Group by an argument, pid or tid.",
    ),
    click.option(
        "--max-keys",
        type=click.IntRange(1, 1_000_000),
        default=1000,
        show_default=True,
        help="Groups to keep with --by; the rest is (other).",
    ),
    filter_option,
    wait_option,
    yes_option,
    interval_option,
    limit_options,
)
"""Of every command that ends with groups, in the order of --help."""

rows_option = click.option(
    "--rows",
    type=click.IntRange(1),
    help="Rows of a table of methods, at most; by default what fits on a terminal.",
)

summary_sort_option = click.option(
    "--sort",
    type=click.Choice(["self", "total"]),
    default="self",
    show_default=True,
    help="Sort order of a table of methods.",
)

unit_option = click.option(
    "--unit",
    type=click.Choice(["auto", "ns", "us", "ms", "s"]),
    default="auto",
    show_default=True,
    help="Time unit.",
)

scale_option = click.option(
    "--scale",
    type=click.Choice(["auto", "linear", "log"]),
    default="auto",
    show_default=True,
    help="Rows of a histogram: equal steps or doublings.",
)

pause_options = chain(
    click.option(
        "--pause", is_flag=True, help="Pause the target while its stacks are read."
    ),
    click.option(
        "--nonblocking",
        is_flag=True,
        hidden=True,
        help="The default; accepted for py-spy and rbspy users.",
    ),
)

idle_option = click.option(
    "--idle/--no-idle",
    default=None,
    help="Include idle threads, which wait for work; --no-idle leaves out every"
    " sleeping thread.",
)

ruby_version_option = click.option(
    "--ruby-version",
    "--force-version",
    "ruby_version",
    metavar="VERSION",
    help="Use the layout of this Ruby version, whatever the process reports.",
)

layout_option = click.option(
    "--layout",
    "saved_layout",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Offsets saved by `layout --save`, for a stripped build.",
)


@dataclass(frozen=True, eq=False, repr=False)
class RubyOptions:
    """``ruby_version_option`` and ``layout_option``."""

    ruby_version: str | None
    saved_layout: str | None

    def read_layout(self) -> SavedLayout | None:
        """Read the file of --layout; raises UsageError."""
        path = self.saved_layout
        if path is None:
            return None
        from rbtrace_py.rubyvm.saved import LARGEST_FILE, read_saved

        try:
            with open(path, "rb") as file:
                return read_saved(file.read(LARGEST_FILE + 1), path)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True, eq=False, repr=False)
class StackOptions(RubyOptions):
    """Options of every command that reads stacks: ``pause_options``, too."""

    pause: bool
    nonblocking: bool

    def check_nonblocking(self) -> None:
        if self.nonblocking and self.pause:
            raise UsageError("--nonblocking and --pause cannot be combined")


def _is_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    return value or is_json_file(ctx.params.get("output"))


@dataclass(frozen=True, eq=False, repr=False)
class JsonOption:
    """``json_option``."""

    as_json: bool


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    callback=_is_json,
    help="Print JSON (docs/formats).",
)


_OUTPUT_HELP = (
    "Write to FILE instead of standard output. Its extension selects the format"
    " unless an option does: .json; for stacks also .svg, .pb.gz, .folded, .rbrec."
)


def _text_file(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    check_text_file(value, ctx.command.name or "")
    return value


@dataclass(frozen=True, eq=False, repr=False)
class OutputOptions(JsonOption):
    """``output_options``."""

    output: str | None


output_options = chain(
    json_option,
    click.option(
        "-o",
        "--output",
        type=WritableFile(),
        is_eager=True,  # --json is told by its name
        callback=_text_file,
        help=_OUTPUT_HELP,
    ),
)
"""Of commands that write text or JSON."""


def _calls_file(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    return value if is_recording_file(value) else _text_file(ctx, parameter, value)


calls_output_option = click.option(
    "-o",
    "--output",
    type=WritableFile(),
    is_eager=True,
    callback=_calls_file,
    help=_OUTPUT_HELP,
)

report_output_option = click.option(
    "-o",
    "--output",
    type=WritableFile(),
    help=_OUTPUT_HELP,
)
"""Of commands that have --format."""

rbtrace_times_option = click.option(
    "--rbtrace-times",
    is_flag=True,
    help="Print durations as rbtrace does, in seconds: <0.001240>, not <1.24 ms>.",
)


@dataclass(frozen=True, eq=False, repr=False)
class AttachOption(YesOption):
    """``attach_option`` and ``yes_option``."""

    attaches: bool


attach_option = click.option(
    "--attach",
    "attaches",
    is_flag=True,
    help="Load the agent if the process lacks it (see `attach --help`).",
)


def time_limit_option(default: float, most: float) -> Callable[[Command], Command]:
    """``--timeout`` of what runs in the process; in seconds."""

    def check(ctx: click.Context, parameter: click.Parameter, value: float) -> float:
        if value > most:
            raise click.BadParameter(f"at most {most:g} s", ctx, parameter)
        return value

    return click.option(
        "--timeout",
        "time_limit",
        type=Seconds(),
        default=default,
        show_default=f"{default:g}s",
        callback=check,
        help="Time limit in the process.",
    )


def _ask(text: str) -> bool:
    """A person's yes on the terminal; without one it is a no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    columns = Style.for_stream(sys.stderr).width - 1
    click.echo(textwrap.fill(f"{text}.", columns), err=True)
    if not click.confirm("Continue anyway?", err=True):
        from rbtrace_py.session.targets.confirmation import NotConfirmed

        # What it is about stands above.
        raise NotConfirmed("not confirmed")
    return True
