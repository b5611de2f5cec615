"""``calls``: every method call as it happens, nested and timed."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.call_writers import (
    CallRecorder,
    Keep,
    Writers,
    Writing,
    WritingOptions,
)
from rbtrace_py.cli.common.messages import wrapped
from rbtrace_py.cli.common.option_fields import option
from rbtrace_py.cli.common.parameter_types import Milliseconds, Seconds, Size
from rbtrace_py.cli.common.selecting import (
    SelectingOptions,
    attach_first,
)
from rbtrace_py.cli.common.session_start import attached, enter, where
from rbtrace_py.cli.common.stop import Stop
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.ticker import QUIET_SECONDS, QuietTicker, Ticker
from rbtrace_py.cli.common.writable import WritableFile
from rbtrace_py.errors import UsageError, loss_exit_code
from rbtrace_py.report.file_formats import is_recording_file
from rbtrace_py.report.json.calls import calls_end_document
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.notes import counter_lines
from rbtrace_py.report.units import format_count
from rbtrace_py.session.event_session import event_turns
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.methods.calls import (
    RING_RECORDS,
    Calls,
    CallsOptions,
    TracedCalls,
)
from rbtrace_py.session.methods.method_sets import METHOD_SETS
from rbtrace_py.session.methods.recorded_calls import RecordedCalls
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.methods.traced_process import Told
from rbtrace_py.session.targets.targets import Targets

SLOW_MS = 250
_Calls = TypeVar("_Calls", bound=TracedCalls[Any])


class _Options(
    SelectingOptions,
    WritingOptions,
    o.LimitOptions,
    o.AttachOption,
    o.YesOption,
    o.JsonOption,
):
    sets: tuple[str, ...] = option(
        "-c",
        "--config",
        after="c_calls",
        metavar="NAME|FILE",
        help="Only methods of a predefined set, or of a file with one selector per"
        f" line: {', '.join(sorted(METHOD_SETS))}.",
    )
    slow_ms: float | None = option(
        "-s",
        "--slow",
        type=Milliseconds(),
        is_flag=False,
        flag_value=str(SLOW_MS),
        metavar="MS",
        help="Only calls that take at least MS milliseconds (10, 10ms, 0.01s;"
        f" {SLOW_MS} if omitted).",
    )
    slowcpu_ms: float | None = option(
        "--slowcpu",
        type=Milliseconds(),
        is_flag=False,
        flag_value=str(SLOW_MS),
        metavar="MS",
        help="Only calls whose thread was on CPU for at least MS milliseconds.",
    )
    slow_methods: tuple[str, ...] = option(
        "--slow-methods",
        metavar="SELECTOR",
        help="Methods that --slow applies to; same syntax as -m. Implies --slow.",
    )
    gc: bool = option("--gc", help="Include garbage collections.")
    record_path: str | None = option(
        "--record",
        after="appends",
        metavar="FILE",
        type=WritableFile(or_folder=True),
        help="Print nothing; record to FILE for `rbtrace-py report`. Same as"
        " -o FILE.rbrec.",
    )
    keep: float | None = option(
        "--keep",
        type=Seconds(),
        metavar="TIME",
        help="With --record and --slow: FILE is a folder of recordings, in which those"
        " older than TIME are deleted (1h, 2h30m).",
    )
    max_size: int = option(
        "--max-size",
        type=Size(),
        default="1GB",
        help="With --keep: the folder's limit; the oldest recordings are deleted.",
    )
    no_cpu: bool = option("--no-cpu", help="Do not record when threads were on CPU.")
    buffer: str = option(
        "--buffer",
        type=click.Choice([str(1 << bits) for bits in range(10, 23)]),
        default=str(RING_RECORDS),
        metavar="EVENTS",
        help="Buffer size of each thread and fiber, in events of 16 bytes: a power of"
        " two, 1024 or more.",
    )
    waits: bool = option(
        "--wait", after="ready_fd", help="Wait for the agent to be loaded."
    )
    timeout: float = option(
        "--timeout",
        type=Seconds(),
        default=10.0,
        show_default="10s",
        help="Time limit for the process to start tracing, and for a COMMAND to wait"
        " for it.",
    )


@target_command("calls", "PID [WORD]...", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Print every method call of a process, nested and timed.

    PID SELECTOR…: with -m, words after the target are selectors too. A call that
    makes other calls is printed when it starts, and again with its time when it
    returns. A selector may be followed by expressions in parentheses, whose values
    at method entry are printed. Expressions run in the process, and their side
    effects remain.

    The process must have loaded the agent: require "tracepoint/agent" in the
    program, start it with RUBYOPT=-rtracepoint/agent (in a checkout
    RUBYOPT="-I$PWD/ruby/lib -rtracepoint/agent"), or use --attach. A COMMAND gets
    the agent automatically and waits until tracing has started. Methods are hooked
    only while this command runs.

    Calls that arrive faster than they can be written are lost; the output marks
    each gap, and the exit code is 5 if more calls were lost than shown. On a
    terminal, lines that come too fast to read are left out and counted. With
    several threads, each line starts with the thread's number, or NUMBER.2 for its
    second stack (a fiber). With several processes, -o writes FILE.PID for each.

    --record also records when each thread was on CPU, runnable or sleeping, where
    BPF is available (as root). With --slow and --keep, it can run for days and
    always has the slow calls of the last hour.

    \b
    Examples:
      rbtrace-py calls 1234
      rbtrace-py calls 1234 -m String#gsub 'Dir.' --count 20
      rbtrace-py calls -m 'Order#' -- ruby shop.rb
      rbtrace-py calls 1234 -m 'Cart#add(self, item, @total, item.price)'
      rbtrace-py calls 1234 --slow 100 -c puma -o slow.log
      rbtrace-py calls 1234 --c-calls --yes --gc -t
      rbtrace-py calls 1234 --json --duration 10
      rbtrace-py calls 1234 -d 10 --record shop.rbrec
      rbtrace-py report shop.rbrec --format perfetto
      rbtrace-py calls 1234 --slow 200 --record slow-requests --keep 1h
      rbtrace-py report slow-requests
    """
    if is_recording_file(options.output) and options.record_path is None:
        options = replace(options, record_path=options.output, output=None)
    chosen = _options(words, options)
    path = options.record_path
    if path is None:
        writers = partial(Writers, options=options)
        return _run(Calls(targets, chosen), writers, options)
    keep = None if options.keep is None else Keep(options.keep, options.max_size)
    recorder = partial(CallRecorder, path=path, most=options.count, keep=keep)
    return _run(RecordedCalls(targets, chosen), recorder, options)


def _run(
    session: _Calls,
    make: Callable[[_Calls, ExitStack], Writing[Any]],
    options: _Options,
) -> int:
    attach_first(session.targets, options)
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        session.stop = stop.is_asked
        enter(stack, session, f"an agent in {where(session.targets)}")
        writers = make(session, stack)
        attached(session)
        said = len(session.notes)
        limits = Limits(options.duration, options.count)
        _write_calls(session, writers, limits, stop)
        notes = session.notes[said:]
        if session.options.select and not session.seen:
            notes = [*notes, session.hint]
        return _sum_up(session, writers, notes, options.as_json)


def _options(words: tuple[str, ...], options: _Options) -> CallsOptions:
    if words and not (options.selectors or options.slow_methods):
        raise UsageError(
            f"too many arguments: {words[0]!r}",
            f"Put selectors after -m: -m {words[0]}",
        )
    if options.appends and options.output is None:
        raise UsageError("--append needs -o FILE")
    if options.record_path is not None and (options.output or options.as_json):
        raise UsageError("--record cannot be combined with -o or --json")
    _check_folder(options)
    if options.no_cpu and options.record_path is None:
        raise UsageError("--no-cpu needs --record: only recordings contain CPU times")
    slow, cpu = options.slow_ms, options.slowcpu_ms
    if slow and cpu:
        raise UsageError("--slow and --slowcpu cannot be combined")
    if cpu and options.record_path is not None:
        raise UsageError(
            "recordings do not store the CPU time that --slowcpu measures",
            "Use --json -o FILE; or use --record FILE alone, then report FILE --cpu",
        )
    if options.slow_methods and not (slow or cpu):
        slow = SLOW_MS
    milliseconds = slow or cpu
    return CallsOptions(
        select=selectors_of(
            [*options.selectors, *options.slow_methods, *words],
            options.sets,
            shows_values=True,
        ),
        c_calls=options.c_calls,
        gc=options.gc,
        slow_ns=max(1, round(milliseconds * 1e6)) if milliseconds else None,
        cpu=cpu is not None,
        confirm=options.confirm,
        wait=options.waits,
        wait_seconds=options.duration,
        seconds=options.timeout,
        ring_records=int(options.buffer),
        switches=options.record_path is not None and not options.no_cpu,
    )


def _check_folder(options: _Options) -> None:
    """Raise UsageError unless --record and --keep agree on a file or folder."""
    path = options.record_path
    is_folder = path is not None and Path(path).is_dir()
    if options.keep is None:
        if is_folder:
            raise UsageError(f"{path} is a directory; name a file, or give --keep")
        return
    if path is None or not (options.slow_ms or options.slow_methods):
        raise UsageError(
            "--keep needs --record and --slow",
            "rbtrace-py calls PID --slow 200 --record FOLDER --keep 1h",
        )
    if Path(path).exists() and not is_folder:
        raise UsageError(f"{path} is not a directory; --keep needs one, or a new name")
    if options.count is not None:
        raise UsageError("--keep and --count cannot be combined")


def _write_calls(
    session: TracedCalls[Told], writers: Writing[Told], limits: Limits, stop: Stop
) -> None:
    """Write all calls until a limit, the end of the targets, or a stop.

    The first Ctrl-C disarms the hooks, and earlier calls are still written. If the
    hooks were already disarmed, or all processes had ended, it drops the calls that are
    not written yet. A second Ctrl-C always does so.
    """
    pids = ", ".join(map(str, session.pids))
    waiting = QuietTicker(f"waiting for calls in pid {pids}")
    writing = Ticker("writing", "stops without writing them", QUIET_SECONDS)
    ended: float | None = None
    had_ended = False
    session.sink = waiting.before(writers.write)
    with suppress(KeyboardInterrupt):
        for is_tracing in event_turns(session, limits, stop.is_asked, waiting.tick):
            writers.flush()
            if not is_tracing:
                ended = ended or time.monotonic()
                left = f"writing {format_count(session.waiting())} remaining events"
                writing.say(left, time.monotonic() - ended)
            if not stop.is_asked():
                processes = session.targets.processes.values()
                is_alive = any(process.alive() for process in processes)
                had_ended = not (is_tracing and is_alive)
            elif had_ended:
                break
            elif is_tracing:
                waiting.end()
    writing.end()
    has_all = session.seen == limits.count
    session.drop(is_lost=not has_all)
    writers.end(has_all)


_FEWER = (
    "to lose fewer: select methods (-m), record only slow calls (--slow), or make"
    " --buffer larger"
)


def _sum_up(
    session: TracedCalls[Any], writers: Writing[Any], notes: list[str], as_json: bool
) -> int:
    """Write the summary, and return the exit code.

    Raises:
        RbtraceError: Tracing of a process failed.
    """
    shown, ends = session.seen, session.ends()
    counters = Counter(session.result_counters())
    if writers.deleted:
        counters["deleted"] = writers.deleted
    lost = counters["lost"] + counters["no_stream"] + writers.deleted
    code = loss_exit_code(shown - writers.deleted, lost)
    stays = [f"process {end.pid}: {text}" for end in ends for text in end.stays]
    if as_json:
        writers.last_words(calls_end_document(shown, counters, stays))
    else:
        advice = [_FEWER] if code and counters["lost"] else []
        own = [f"process {end.pid}: {text}" for end in ends for text in end.notes]
        lasting = [f"it stays so: {text}" for text in stays]
        _print_summary(shown, counters, [*advice, *notes, *own, *lasting])
    if session.failure is not None:
        raise session.failure
    return code


def _print_summary(shown: int, counters: Counter[str], notes: list[str]) -> None:
    style = Style.for_stream(sys.stderr)
    calls = "1 call" if shown == 1 else f"{format_count(shown)} calls"
    click.echo(calls, err=True)
    for line in counter_lines(counters, style):
        click.echo(line, err=True)
    for text in notes:
        click.echo(wrapped(text, "  ", style), err=True)
