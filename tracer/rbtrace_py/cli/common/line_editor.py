"""Lines typed at a terminal: edited by readline, with completion and a history."""

from __future__ import annotations

import os
import readline
import signal
import threading
from collections.abc import Callable

from rbtrace_py.cli.common.console_history import History
from rbtrace_py.cli.common.stop import Interrupted
from rbtrace_py.errors import RbtraceError

Complete = Callable[[str], list[str]]
"""Completer: returns the possible completions of the last word of a text."""

_DELIMITERS = " \t\n\"'`\\=<>;|&{}()[],+-*/%^~.!:?"
_RETRY_SECONDS = 0.01


class LineEditor:
    """Reader of lines, with Tab completion and a history."""

    def __init__(self, complete: Complete, history: History) -> None:
        self._complete = complete
        self._history = history
        self._found: list[str] = []
        self._leaving: Interrupted | None = None
        for line in history.lines():
            readline.add_history(line)
        readline.set_completer_delims(_DELIMITERS)
        readline.set_completer(self._choice)
        is_editline = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind(
            "bind ^I rl_complete" if is_editline else "tab: complete"
        )

    def line(self, prompt: str, goes_on: bool = False) -> str:
        """Read a line; raises as ``input`` does, and Interrupted.

        Args:
            prompt: Prompt to print.
            goes_on: True if the line continues the line before it.
        """
        try:
            line = input(prompt)
        finally:
            if self._leaving is not None:
                raise self._leaving
        self._history.add(line, goes_on)
        return line

    def _choice(self, text: str, number: int) -> str | None:
        """Return a completion by number, as readline asks; None after the last."""
        if number == 0:
            self._found = self._choices()
        return self._found[number] if number < len(self._found) else None

    def _choices(self) -> list[str]:
        line = readline.get_line_buffer().encode("utf-8", "surrogateescape")
        before = line[: readline.get_endidx()].decode("utf-8", "replace")
        try:
            return self._complete(before)
        except RbtraceError:
            return []  # Errors are shown when the line is run.
        except Interrupted as error:
            # Readline swallows exceptions that are raised here, and waits on.
            self._leaving = error
            again = (os.getpid(), signal.SIGTERM)
            threading.Timer(_RETRY_SECONDS, os.kill, again).start()
            return []
