"""``console``: an interactive session that runs code in a process."""

from __future__ import annotations

import io
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from rbtrace_py.cli.common import options as o
from rbtrace_py.cli.common.messages import show_error
from rbtrace_py.cli.common.output import Output, opened
from rbtrace_py.cli.common.per_process import check_words, with_agent
from rbtrace_py.cli.common.stop import Interrupted, is_ignored
from rbtrace_py.cli.common.streamed_output import StreamedOutput
from rbtrace_py.cli.common.target_options import target_command
from rbtrace_py.cli.common.waiting import waiting_for
from rbtrace_py.errors import UsageError
from rbtrace_py.model.process_state import Evaluated, Raised
from rbtrace_py.report.terminal.inside import raised_lines, shown, value_lines
from rbtrace_py.session.inside.console import Console, Form, GivenUp
from rbtrace_py.session.targets.targets import Targets

Read = Callable[[int, bool], str | None]
"""Function that reads a line by its number, or None at the end.

The second argument is true if the line continues the one before it.
"""

_LEAVING = ("exit", "quit")
_GOES_ON = re.compile(r"(?<!\\)(\\\\)*\\\Z")


class _Options(o.AttachOption, o.YesOption):
    pass


@target_command("console", "PID", _Options)
def command(targets: Targets, words: tuple[str, ...], options: _Options) -> int:
    """Open a Ruby console inside a process, like irb.

    Code runs at top level, each input in its own thread. Local variables persist
    until you leave, and _ is the last value. Ctrl-C interrupts running code or
    discards the input line; Ctrl-D, exit or quit leave. The process keeps running.
    Tab completes names without calling the program's methods. History is saved in
    ~/.local/state/rbtrace-py, except for lines that start with a space. Code can
    also be piped in; then the exit code is 1 if any input raised.

    The process must have loaded the agent (see `eval --help`).

    \b
    Examples:
      rbtrace-py console 1234
      rbtrace-py console --ps puma
      rbtrace-py console 1234 < questions.rb
    """
    check_words("console", targets, words)
    processes = with_agent(targets, options)
    if len(processes) > 1:
        raise UsageError("console works on one process")
    with waiting_for([processes[0].pid]):
        console = Console(processes[0])
    with console, opened(None) as output:
        if sys.stdin.isatty() and sys.stdout.isatty():
            _at_terminal(console, processes[0].pid, output)
            return 0
        return int(not _from_pipe(console, output))


def _from_pipe(console: Console, output: Output) -> bool:
    """Run code from a pipe; return whether all of it had a value."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    pieces = _Pieces(console, _next_line)
    is_fine = True
    while (piece := pieces.next()) is not None:
        output.lines([f"{output.style.dim('>>')} {shown(piece.code, output.style)}"])
        found = _answer(console, piece, output)
        if found is None:
            break
        is_fine = is_fine and isinstance(found, Evaluated)
    return is_fine


def _next_line(number: int, goes_on: bool) -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _at_terminal(console: Console, pid: int, output: Output) -> None:
    # Readline is not available everywhere, and only a terminal needs it.
    from rbtrace_py.cli.common.console_history import History
    from rbtrace_py.cli.common.line_editor import LineEditor

    lines = LineEditor(console.complete, History("console_history"))
    err = Output(sys.stderr, "standard error")
    who = f"{console.program}, process {pid}, Ruby {console.ruby}"
    err.lines([f"rbtrace-py: {shown(who, err.style)}"])
    err.lines(["  Tab completes, Ctrl-C interrupts, Ctrl-D leaves"])

    def typed(number: int, goes_on: bool) -> str | None:
        try:
            prompt = f"{pid}:{number}{'*' if goes_on else '>'} "
            return lines.line(prompt, goes_on)
        except EOFError:
            output.lines([""])
            return None
        except UnicodeDecodeError:
            return ""

    with _signals(console):
        _talk(console, _Pieces(console, typed), output)


def _talk(console: Console, pieces: _Pieces, output: Output) -> None:
    """Run code until the user leaves; Ctrl-C drops typed text."""
    while True:
        try:
            piece = pieces.next()
            if piece is None or _answer(console, piece, output) is None:
                return
        except KeyboardInterrupt:
            output.lines([""])
        except GivenUp as error:
            show_error(error)


@contextmanager
def _signals(console: Console) -> Iterator[None]:
    """Cancel running code at Ctrl-C; leave at a second one or another signal.

    Once the session is leaving, a signal does not lead back to the prompt.
    """
    is_leaving = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        # While the console is busy, a frame may be half read. Then nothing may be
        # raised here except to end the session.
        if is_leaving or (console.is_busy and console.is_cancelled):
            leave(number, frame)
        if not console.is_busy:
            raise KeyboardInterrupt
        console.cancel()

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal is_leaving
        is_leaving = True
        raise Interrupted

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: leave, signal.SIGHUP: leave}
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if not is_ignored(number)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Code to run; ``line`` is the number of its first line."""

    code: str
    form: Form
    line: int


class _Pieces:
    """Code in pieces, each with as many lines as Ruby's parser needs."""

    def __init__(self, console: Console, read: Read) -> None:
        self._console = console
        self._read = read
        self._number = 0

    def next(self) -> _Piece | None:
        """Return the next piece, or None at the end.

        The last piece may be unfinished; running it then reports that.
        """
        lines: list[str] = []
        while (line := self._read(self._number + 1, bool(lines))) is not None:
            self._number += 1
            lines.append(line)
            code = "\n".join(lines)
            if not code.strip():
                lines.clear()
                continue
            form = self._form(code)
            if form is not Form.UNFINISHED:
                return self._piece(lines, form)
        return self._piece(lines, Form.OTHER) if lines else None

    def _form(self, code: str) -> Form:
        # Ruby would ignore a backslash at the very end.
        if _GOES_ON.search(code):
            return Form.UNFINISHED
        return self._console.form(code)

    def _piece(self, lines: list[str], form: Form) -> _Piece:
        return _Piece("\n".join(lines), form, self._number - len(lines) + 1)


def _answer(
    console: Console, piece: _Piece, output: Output
) -> Evaluated | Raised | None:
    """Run a piece and show the outcome; return None if it leaves the session."""
    if piece.code.strip() in _LEAVING:
        return None
    out = StreamedOutput(output)
    errors = Output(sys.stderr, "standard error")
    err = StreamedOutput(errors)
    try:
        found = console.evaluate(piece.code, piece.form, piece.line, out, err)
    finally:
        out.end()
        err.end()
    if isinstance(found, Evaluated):
        output.lines(value_lines(found, output.style))
    elif found.class_name == "SystemExit":
        return None
    else:
        errors.lines(raised_lines(found, errors.style))
    return found
