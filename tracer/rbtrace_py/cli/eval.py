"""``eval``: run Ruby code in a process that has the agent."""

from __future__ import annotations

import sys
from functools import partial

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.output import Output, opened
from rbtrace_py.cli.common.per_process import check_words, leaves_out, with_agent
from rbtrace_py.cli.common.streamed_output import StreamedOutput
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.waiting import waiting_for
from rbtrace_py.errors import RbtraceError, UsageError
from rbtrace_py.linux.process import Process
from rbtrace_py.model.process_state import Evaluated, Raised
from rbtrace_py.report.json.inside import eval_document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.inside import raised_lines, shown, value_lines
from rbtrace_py.session.inside import commands
from rbtrace_py.session.targets.targets import Targets


class _Options(o.AttachOption, o.YesOption, o.JsonOption):
    code_file: str | None = option(
        "-f",
        "--file",
        type=click.Path(allow_dash=True, dir_okay=False),
        help="Read the code from FILE; - is standard input.",
    )
    echo: bool | None = option(
        "--echo/--no-echo",
        default=None,
        help="Print `>> CODE` and `=>` before the value; by default only on a"
        " terminal.",
    )
    time_limit: float = o.time_limit_option(
        commands.EVAL_SECONDS, commands.MOST_SECONDS, after="yes"
    )


@target_command("eval", "PID [CODE]", _Options, may_be_numbers=True)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Run Ruby code in a process and print its value.

    PID CODE: the code runs at top level, in its own thread. Its output is printed
    first, then its value. Without CODE, code is read from standard input. The exit
    code is 1 if the code raises.

    The process must have loaded the agent: require "tracepoint/agent" in the
    program, start it with RUBYOPT=-rtracepoint/agent, where the gem is installed
    (in a checkout RUBYOPT="-I$PWD/ruby/lib -rtracepoint/agent"), or use --attach.
    The agent answers processes that have the right to read this process's memory.

    If the process has a seccomp filter, it is checked for the system calls of the
    agent. Your code cannot be checked: a filter that kills may end the process.

    \b
    Examples:
      rbtrace-py eval 1234 'ObjectSpace.count_objects[:T_STRING]'
      rbtrace-py eval 1234 'puts Thread.list.size' --json
      rbtrace-py eval 1234 'GC.stat(:count)' --attach
      rbtrace-py eval 1234 -f fix.rb --timeout 1m
      echo 'GC.start' | rbtrace-py eval 1234
    """
    check_words("eval", targets, words, most=1, hint="Quote the code")
    code, name = _code(words, options.code_file)
    echoes = sys.stdout.isatty() if options.echo is None else options.echo
    talk = partial(_conversation, echoes=echoes)
    one = _document if options.as_json else talk
    found = with_agent(targets, options)
    results = []
    for process in found:
        if len(found) > 1 and not options.as_json:
            click.echo(f"rbtrace-py: process {process.pid}", err=True)
        try:
            results.append(one(process, code, name, options.time_limit))
        except RbtraceError as error:
            if not leaves_out(targets, process, error):
                raise
    return int(not all(results))


def _code(words: tuple[str, ...], path: str | None) -> tuple[str, str | None]:
    """Return the code, and its file's name if it has one."""
    if words and path is not None:
        raise UsageError("CODE and --file cannot be combined")
    if words:
        return words[0], None
    if path is None and sys.stdin.isatty():
        raise UsageError("no code given", "Give CODE or --file, or pipe code in")
    is_file = path not in (None, "-")
    return _read(path or "-"), path if is_file else None


def _read(path: str) -> str:
    try:
        with click.open_file(path, "rb") as file:
            return str(file.read(), "utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"the code in {path} is not UTF-8") from None


def _conversation(
    process: Process, code: str, name: str | None, seconds: float, echoes: bool
) -> bool:
    """Run code, print its output and value, and return whether there was a value."""
    with opened(None) as output:
        if echoes:
            lines = code.rstrip("\n")
            output.lines([f"{output.style.dim('>>')} {shown(lines, output.style)}"])
        out = StreamedOutput(output)
        err = StreamedOutput(Output(sys.stderr, "standard error"))
        try:
            with waiting_for([process.pid]) as waiting:
                first, second = (waiting.before(one, ends=True) for one in (out, err))
                found = commands.evaluate(process, code, first, second, name, seconds)
        finally:
            out.end()
            err.end()
        if isinstance(found, Evaluated):
            output.lines(value_lines(found, output.style, echoes))
            return True
    style = Style.for_stream(sys.stderr)
    for line in raised_lines(found, style):
        click.echo(line, err=True)
    return False


def _document(process: Process, code: str, name: str | None, seconds: float) -> bool:
    hint = "Leave out --json: then output of any length is printed"
    out, err = commands.CollectedOutput(hint), commands.CollectedOutput(hint)
    found: Evaluated | Raised | RbtraceError
    try:
        with waiting_for([process.pid]):
            found = commands.evaluate(process, code, out, err, name, seconds)
    except RbtraceError as error:
        found = error
    with opened(None) as output:
        document = eval_document(process.pid, code, found, out.text, err.text)
        output.lines([dumps(document)])
    if isinstance(found, RbtraceError):
        raise found
    return isinstance(found, Evaluated)
