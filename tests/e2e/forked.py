"""``rbtrace-py`` in a fork of this process, because starting Python takes long."""

from __future__ import annotations

import os
import secrets
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from processes import TIMEOUT, await_state, read_line
from rbtrace_py.agent.client import Agent
from rbtrace_py.cli.main import main
from rbtrace_py.session.inside import attach

MARK = secrets.token_hex(4)
"""Prefix of the names of files that these commands create in a target's root."""
_token_hex = secrets.token_hex

Prepare = Callable[[], None]
"""A function that runs in the fork before the command."""


def become(words: list[str], prepare: Prepare) -> NoReturn:
    """Run the command in a fork, after ``prepare`` has set up its streams."""
    code = 70
    try:
        prepare()
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Forked:
    """A command that runs in a fork.

    Its output goes to files in ``folder``, and its temporary files to ``folder/tmp``.
    It reads ``typed`` on its standard input, which then stays open. ``prepare`` runs in
    the fork before the command.
    """

    def __init__(
        self,
        *words: object,
        folder: Path,
        typed: str = "",
        prepare: Prepare = lambda: None,
    ) -> None:
        self._out, self._err = folder / "out", folder / "err"
        self._code: int | None = None
        ready, ready_end = os.pipe()
        stdin, self._typing = os.pipe()
        os.write(self._typing, typed.encode())
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ready)
            os.close(self._typing)
            os.environ["RBTRACE_READY_FD"] = str(ready_end)
            os.environ["TMPDIR"] = str(folder / "tmp")
            tempfile.tempdir = None
            secrets.token_hex = lambda size=None: MARK + _token_hex(size)
            self._run(list(map(str, words)), stdin, prepare)
        self._end = os.pidfd_open(self.pid)
        os.close(ready_end)
        os.close(stdin)
        self._ready = os.fdopen(ready)

    def _run(self, words: list[str], stdin: int, prepare: Prepare) -> NoReturn:
        def prepared() -> None:
            os.dup2(stdin, 0)
            for number, path in ((1, self._out), (2, self._err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            prepare()

        become(words, prepared)

    def await_attached(self) -> None:
        said = read_line(self._ready)
        assert said == "attached", self.result()

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def await_stopped(self) -> None:
        await_state(self.pid, "T")

    def result(self) -> tuple[str, str, int]:
        """Wait for the end. Return the output, the errors, and the exit code. The exit
        code is negative if a signal ended the command."""
        if self._code is None:
            assert select.select([self._end], [], [], TIMEOUT)[0], "it does not end"
            _, status = os.waitpid(self.pid, 0)
            self._code = os.waitstatus_to_exitcode(status)
        return self._out.read_text(), self._err.read_text(), self._code

    def close(self) -> None:
        if self._code is None:
            self.send(signal.SIGKILL)
            self.result()
        self._ready.close()
        os.close(self._typing)
        os.close(self._end)


def at_request(
    command: str, act: Callable[[], None], before: Callable[[], None] = lambda: None
) -> Prepare:
    """Call ``act`` after ``command`` is sent to the agent, before its answer is read.

    ``before`` is called before the command is sent.
    """

    def prepare() -> None:
        call, answer = Agent._call, Agent._answer
        asked: list[str] = []

        def noted(agent, name, *rest):
            asked.append(name)
            if name == command:
                before()
            return call(agent, name, *rest)

        def acting(agent, *rest, **more):
            if asked[-1] == command:
                act()
            return answer(agent, *rest, **more)

        Agent._call, Agent._answer = noted, acting

    return prepare


def at_data(act: Callable[[], None]) -> Prepare:
    """Call ``act`` when the agent's first data arrives."""

    def prepare() -> None:
        take = Agent._process_data

        def acting(*arguments):
            act()
            take(*arguments)

        Agent._process_data = acting

    return prepare


def at_step(step: str, act: Callable[[], None]) -> Prepare:
    """Call ``act`` at a step of loading the agent into a process."""

    def prepare() -> None:
        load = attach.load_agent

        def acting(*arguments):
            *rest, at = arguments

            def noted(name):
                if name == step:
                    act()
                at(name)

            return load(*rest, noted)

        attach.load_agent = acting

    return prepare


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
