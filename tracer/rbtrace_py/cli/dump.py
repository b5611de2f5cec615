"""``dump``: the stacks of all threads now, or in a core file."""

from __future__ import annotations

import os
import re

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.messages import say_note
from rbtrace_py.cli.common.option_fields import argument, option, typed
from rbtrace_py.cli.common.output import opened
from rbtrace_py.cli.common.pid_completion import complete_pid_or_file
from rbtrace_py.cli.common.target_options import (
    TargetOptions,
    opened_targets,
)
from rbtrace_py.errors import NoSuchTarget, RbtraceError, UsageError
from rbtrace_py.model.dump import Dump
from rbtrace_py.report.json.dump import dump_document
from rbtrace_py.report.json.serializer import dumps
from rbtrace_py.report.terminal.dump import dump_lines
from rbtrace_py.session.stacks.cores import CoreOptions, dump_core, parse_symbol
from rbtrace_py.session.stacks.dump import DumpOptions, dump
from rbtrace_py.session.targets.targets import Targets

_PIDS = re.compile(r"-?[\d,]+")


class _Options(TargetOptions, o.StackOptions, o.OutputOptions):
    words: tuple[str, ...] = argument(
        nargs=-1, metavar="PID|CORE", shell_complete=complete_pid_or_file
    )
    fibers: bool = option(
        "--fibers", after="subprocesses", help="Include suspended fibers."
    )
    one_by_one: bool = option(
        "--idle", help="Show sleeping threads with equal stacks one by one."
    )
    show_locals: bool = option(
        "--locals",
        help="Show arguments and local variables; this prints the program's data.",
    )
    lines: bool = option(
        "--lines/--no-lines",
        after="nonblocking",
        default=True,
        help="Show line numbers.",
    )
    exe: str | None = option(
        "--exe",
        after="saved_layout",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="For a core file: the program, or its libruby.",
    )
    symbols: tuple[str, ...] = option(
        "--symbol",
        metavar="NAME=ADDRESS",
        help="For a core file: address of a symbol that the program lacks; repeatable.",
    )


@click.command("dump")
@typed(_Options)
def command(options: _Options) -> int:
    """Print the stack of every thread of a Ruby process once.

    Below each thread is the reason why it waits, and at the end are cycles of threads
    that wait for one another. Sleeping threads with equal stacks are printed once,
    with all their names, unless --idle is given.

    The process keeps running, unless --pause is given: then it is paused for a few
    milliseconds while its stacks are read.

    Core files work as well, gzipped or not. The program is read from its
    original path, or from --exe. Without it, give addresses with --symbol:
    ruby_current_vm_ptr, ruby_current_execution_context_ptr, ruby_current_thread
    (pointers), ruby_global_symbols or global_symbols, and rb_zjit_entry (4.1).

    \b
    Examples:
      rbtrace-py dump 1234
      rbtrace-py dump 1234 --fibers --json
      rbtrace-py dump 1234 --locals
      rbtrace-py dump core.1234 --exe /usr/lib/libruby-3.1.so.3.1
    """
    if (click.get_current_context().obj or {}).get("command"):
        raise UsageError(
            "dump works on running processes, not on a command",
            "Start the program and give its PID; `stacks -- COMMAND` samples a command",
        )
    options.check_nonblocking()
    words = options.words
    is_named = options.ps is not None or options.pid_words
    is_core = bool(words) and not is_named and not _PIDS.fullmatch(words[0])
    dumps_ = _cores(options) if is_core else _processes(options)
    with opened(options.output) as output:
        if options.as_json:
            output.lines([dumps(dump_document(dumps_))])
        else:
            for number, one in enumerate(dumps_):
                output.lines([""] if number else [])
                output.lines(
                    dump_lines(one, output.style, options.lines, options.one_by_one)
                )
    return int(bool(dumps_) and all(_is_lost(one) for one in dumps_))


def _is_lost(one: Dump) -> bool:
    """Return whether nothing of a dump could be read."""
    return all(thread.stack is None for thread in one.threads)


def _cores(options: _Options) -> list[Dump]:
    if options.pause or options.subprocesses:
        raise UsageError("--pause and --subprocesses do not apply to core files")
    for word in options.words:
        if not os.path.exists(word):
            raise RbtraceError(
                f"cannot read {word}: No such file or directory",
                "Give the PID of a process, or the path of a core file",
            )
    settings = CoreOptions(
        exe=options.exe,
        ruby_version=options.ruby_version,
        saved=options.read_layout(),
        symbols=dict(map(parse_symbol, options.symbols)),
        fibers=options.fibers,
        locals=options.show_locals,
    )
    return [dump_core(path, settings) for path in options.words]


def _processes(options: _Options) -> list[Dump]:
    with opened_targets(options) as (targets, words):
        return _dump_targets(targets, words, options)


def _dump_targets(
    targets: Targets, words: tuple[str, ...], options: _Options
) -> list[Dump]:
    if options.exe or options.symbols:
        raise UsageError("--exe and --symbol apply only to core files")
    if words:
        raise UsageError(f"too many arguments: {words[0]!r}")
    settings = DumpOptions(
        options.fibers,
        options.pause,
        options.ruby_version,
        options.read_layout(),
        options.show_locals,
    )
    processes = targets.alive()
    found: list[Dump] = []
    missed: list[RbtraceError] = []
    for process in processes:
        try:
            found.append(dump(process, settings))
        except UsageError:
            raise
        except RbtraceError as error:
            # One of several processes may have exited. A child may be any program, or
            # another user's.
            missed.append(error)
    if not found:
        raise missed[0] if missed else NoSuchTarget("the process has ended")
    for problem in missed:
        say_note(str(problem))
    return found
