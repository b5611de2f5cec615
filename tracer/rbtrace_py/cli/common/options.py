"""Options that several commands share, each declared once."""

from __future__ import annotations

import fcntl
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import click

from rbtrace_py.cli.common.option_fields import OptionGroup, option
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

# ProbeOptions is imported late, because commands without probes would spend most of
# their start-up time on it.
# start-up time on it.


class YesOption(OptionGroup):
    """``--yes``."""

    yes: bool = option(
        "--yes",
        help="Skip confirmation, even for operations that can harm the process.",
    )

    @property
    def confirm(self) -> Callable[[str], bool]:
        return (lambda text: True) if self.yes else _ask


def _keep_ready_fd(
    context: click.Context, parameter: click.Parameter, number: int | None
) -> None:
    if number is not None:
        try:
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        except OSError as error:
            raise click.BadParameter(f"descriptor {number} is not open") from error
        if mode == os.O_RDONLY:
            raise click.BadParameter(f"descriptor {number} is not open for writing")
    context.meta[READY_FD] = number


class LimitOptions(OptionGroup):
    """Options that end a session, and the option for its ready message."""

    duration: float | None = option(
        "-d",
        "--duration",
        type=Seconds(),
        help="Stop after TIME (10, 500ms, 1h30m, 7d).",
    )
    count: int | None = option(
        "-n", "--count", type=click.IntRange(1), help="Stop after this many events."
    )
    # Not a field of options: click's context has the value.
    ready_fd: ClassVar[None] = option(
        "--ready-fd",
        metavar="N",
        type=click.IntRange(3),
        envvar="RBTRACE_READY_FD",
        expose_value=False,
        callback=_keep_ready_fd,
        help="Write a line to file descriptor N, and close it, when tracing has begun.",
    )

    @property
    def limits(self) -> Limits:
        return Limits(self.duration, self.count)


class IntervalOptions(LimitOptions):
    """Limits, and ``--interval``."""

    interval: float | None = option(
        "-i",
        "--interval",
        type=Seconds(),
        help="Print a report every TIME, covering that interval.",
    )

    @property
    def limits(self) -> Limits:
        return Limits(self.duration, self.count, self.interval)


class EventOptions(YesOption, LimitOptions):
    """Options of commands that attach to probes."""

    filter_: str | None = option(
        "--filter",
        metavar="EXPR",
        help="Only matching events, e.g. 'id > 10 and sku == \"abc\"'.",
    )
    wait: bool = option("--wait", help="Wait for probes that do not exist yet.")

    @property
    def probe_options(self) -> ProbeOptions:
        """Return the options of sessions."""
        from rbtrace_py.session.probes.query import ProbeOptions

        return ProbeOptions(
            filter=self.filter_,
            wait=self.wait,
            wait_seconds=self.duration,
            confirm=self.confirm,
        )


class _KeyOption(click.Option):
    """``--by``, which may be given once.

    Otherwise, click would use the last of several keys. With ``multiple``, the value
    would be a tuple for all readers.
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


class GroupingOptions(EventOptions, IntervalOptions):
    """Options of commands that group events."""

    by: str | None = option(
        "--by", metavar="ARG", cls=_KeyOption, help="Group by an argument, pid or tid."
    )
    max_keys: int = option(
        "--max-keys",
        type=click.IntRange(1, 1_000_000),
        default=1000,
        help="Groups to keep with --by; the rest is (other).",
    )

    @property
    def probe_options(self) -> ProbeOptions:
        return replace(super().probe_options, by=self.by, max_keys=self.max_keys)


def rows_option(after: str = "") -> Any:
    return option(
        "--rows",
        after=after,
        type=click.IntRange(1),
        help="Rows of a table of methods, at most; by default what fits on a terminal.",
    )


def unit_option(after: str) -> Any:
    return option(
        "--unit",
        after=after,
        type=click.Choice(["auto", "ns", "us", "ms", "s"]),
        default="auto",
        help="Time unit.",
    )


def scale_option(after: str = "") -> Any:
    return option(
        "--scale",
        after=after,
        type=click.Choice(["auto", "linear", "log"]),
        default="auto",
        help="Rows of a histogram: equal steps or doublings.",
    )


def idle_option() -> Any:
    return option(
        "--idle/--no-idle",
        default=None,
        help="Include idle threads, which wait for work; --no-idle leaves out every"
        " sleeping thread.",
    )


def saved_layout_option() -> Any:
    return option(
        "--layout",
        metavar="FILE",
        type=click.Path(dir_okay=False),
        help="Offsets saved by `layout --save`, for a stripped build.",
    )


def rbtrace_times_option() -> Any:
    return option(
        "--rbtrace-times",
        help="Print durations as rbtrace does, in seconds: <0.001240>, not <1.24 ms>.",
    )


class RubyOptions(OptionGroup):
    """Options for the layout of Ruby's structures."""

    ruby_version: str | None = option(
        "--ruby-version",
        "--force-version",
        metavar="VERSION",
        help="Use the layout of this Ruby version, whatever the process reports.",
    )
    saved_layout: str | None = saved_layout_option()

    def read_layout(self) -> SavedLayout | None:
        """Read the file of --layout.

        Raises:
            UsageError: The file cannot be read, or is malformed.
        """
        path = self.saved_layout
        if path is None:
            return None
        from rbtrace_py.rubyvm.saved import LARGEST_FILE, read_saved

        try:
            with open(path, "rb") as file:
                return read_saved(file.read(LARGEST_FILE + 1), path)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error


class StackOptions(RubyOptions):
    """Options of commands that read stacks."""

    pause: bool = option("--pause", help="Pause the target while its stacks are read.")
    nonblocking: bool = option(
        "--nonblocking",
        hidden=True,
        help="The default; accepted for py-spy and rbspy users.",
    )

    def check_nonblocking(self) -> None:
        if self.nonblocking and self.pause:
            raise UsageError("--nonblocking and --pause cannot be combined")


def _is_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    return value or is_json_file(ctx.params.get("output"))


class JsonOption(OptionGroup):
    """``--json``."""

    as_json: bool = option(
        "--json", callback=_is_json, help="Print JSON (docs/formats)."
    )


def output_option(after: str = "", **attributes: Any) -> Any:
    return option(
        "-o",
        "--output",
        after=after,
        type=WritableFile(),
        help="Write to FILE instead of standard output. Its extension selects the"
        " format unless an option does: .json; for stacks also .svg, .pb.gz, .folded,"
        " .rbrec.",
        **attributes,
    )


def _text_file(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    check_text_file(value, ctx.command.name or "")
    return value


class OutputOptions(JsonOption):
    """Options of commands that write text or JSON."""

    # Eager, because _is_json reads the file's name.
    output: str | None = output_option("as_json", is_eager=True, callback=_text_file)


def _calls_file(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    return value if is_recording_file(value) else _text_file(ctx, parameter, value)


def calls_output_option() -> Any:
    return output_option(is_eager=True, callback=_calls_file)


class MayAttach(Protocol):
    """Options with ``--attach`` and ``--yes``."""

    @property
    def attaches(self) -> bool: ...

    @property
    def confirm(self) -> Callable[[str], bool]: ...


class AttachOption(OptionGroup):
    """``--attach``."""

    attaches: bool = option(
        "--attach", help="Load the agent if the process lacks it (see `attach --help`)."
    )


def time_limit_option(default: float, most: float, after: str = "") -> Any:
    """Return a field for ``--timeout``: seconds that code in the process may take."""

    def check(ctx: click.Context, parameter: click.Parameter, value: float) -> float:
        if value > most:
            raise click.BadParameter(f"at most {most:g} s", ctx, parameter)
        return value

    return option(
        "--timeout",
        after=after,
        type=Seconds(),
        default=default,
        show_default=f"{default:g}s",
        callback=check,
        help="Time limit in the process.",
    )


def _ask(text: str) -> bool:
    """Ask the user on the terminal; without a terminal, the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    columns = Style.for_stream(sys.stderr).width - 1
    click.echo(textwrap.fill(f"{text}.", columns), err=True)
    if not click.confirm("Continue anyway?", err=True):
        from rbtrace_py.session.targets.confirmation import NotConfirmed

        # The question above names the hazard.
        raise NotConfirmed("not confirmed")
    return True
