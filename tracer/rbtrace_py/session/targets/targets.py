"""The processes of a session: a set that may grow and shrink."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict

from rbtrace_py.errors import NoSuchTarget, RbtraceError, UsageError
from rbtrace_py.linux import locked_memory
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.processes import children
from rbtrace_py.linux.ptrace.held_start import HELD_SECONDS, HeldStart
from rbtrace_py.rubyvm.detect import find_ruby

if TYPE_CHECKING:
    from rbtrace_py.linux.probes import ProbeCache


_LOADING_SECONDS = 0.02


class Targets:
    """The processes of a session, by PID.

    Attributes:
        follow: Children join (``--subprocesses``).
        command: Words of a program that we start on the first access; None: none.
        is_single: One process was named, and no other can join.
        probes: Cache of probes by file.
        output: Descriptor for our program's output; it then has no input. None: it
            inherits our streams.
    """

    def __init__(
        self,
        processes: dict[int, Process],
        follow: bool = False,
        command: Sequence[str] | None = None,
        is_single: bool = False,
    ) -> None:
        self._processes = processes
        self.follow = follow
        self.command = command
        self.is_single = is_single
        self.output: int | None = None
        self._environment: dict[str, str] = {}
        self._started: subprocess.Popen[bytes] | None = None
        self._held: HeldStart | None = None
        self._ended: list[int] = []
        self._seen: list[int] = []
        self._joined: set[tuple[int, int]] = set()

    @classmethod
    def from_pids(cls, pids: Sequence[int], follow: bool = False) -> Targets:
        """Return the targets with these PIDs.

        Args:
            pids: PIDs.
            follow: Let their children join.

        Raises:
            NoSuchTarget, NotPermitted: A process is missing or inaccessible.
        """
        targets = cls({}, follow, is_single=len(pids) == 1 and not follow)
        try:
            for pid in pids:
                targets._add(Process(pid))
        except BaseException:
            targets.close()
            raise
        if follow:
            targets.refresh()
        return targets

    @classmethod
    def from_command(cls, words: Sequence[str], follow: bool = False) -> Targets:
        """Return a target that is a program to start.

        It starts on the first access to its process, so that the caller can find
        problems before the program does anything.
        """
        return cls({}, follow, words, is_single=not follow)

    def start_with_agent(self, seconds: float) -> None:
        """Let our program, if any, start with an agent.

        Args:
            seconds: Maximum time for which the program waits to be armed.
        """
        assert self._started is None
        if self.command is not None:
            # Import late: only sessions with agents need it.
            from rbtrace_py.agent.starting import environment

            self._environment = environment(seconds, os.environ)

    def start_held(self) -> None:
        """Hold our program, if any, before it runs Ruby code.

        ``wait`` lets it continue step by step, and ``release`` ends this. It is held
        for at most HELD_SECONDS. If it cannot be held, it runs normally.
        """
        if self.command is not None and self._started is None:
            self._held = HeldStart()

    def wait(self, seconds: float, until_started: bool = False) -> None:
        """Wait until the targets may have new probes, or a VM.

        If our program is held, it runs until it has loaded another program. If that is
        a Ruby, the next wait releases it. With ``until_started``, the next waits let it
        run to later system calls instead.
        """
        held = self._held
        if held is None or held.is_over or self.ours is None:
            time.sleep(seconds)
        elif not held.is_held or not _runs_ruby(self.ours):
            held.to_program(seconds)
        elif until_started:
            held.to_call(seconds)
        else:
            self.release()

    def is_at_beginning(self) -> bool:
        """Return whether our program is held and has not run Ruby code.

        Wait if a Ruby is being loaded.
        """
        held, ours = self._held, self.ours
        if held is None or ours is None:
            return False
        while not (held.is_held or held.is_over) and _runs_ruby(ours):
            held.to_program(_LOADING_SECONDS)
        return held.is_at_beginning

    def release(self) -> None:
        """Let our program run, if it is held."""
        held, self._held = self._held, None
        if held is not None:
            held.release()

    @property
    def ours(self) -> Process | None:
        """The process of our program while it is alive."""
        pid = None if self._started is None else self._started.pid
        return self._processes.get(pid or 0)

    def is_ours(self, process: Process) -> bool:
        """Return whether this is the process that we started, despite any exec."""
        return process is self.ours

    def follows(self, process: Process) -> bool:
        """Return whether a program that it executes is traced as well."""
        return self.follow or self.is_ours(process)

    @cached_property
    def probes(self) -> ProbeCache:
        """The probes of the files that the processes map."""
        # Import late: reading stacks does not need it.
        from rbtrace_py.linux.probes import ProbeCache

        return ProbeCache()

    @property
    def processes(self) -> dict[int, Process]:
        self._begin()
        return self._processes

    def _begin(self) -> None:
        """Start the program as the user who called sudo.

        Raises UsageError on failure.
        """
        if self.command is None or self._started is not None:
            return
        try:
            self._started = self._popen(self.command)
        except OSError as error:
            self._held = None
            raise UsageError(
                f"cannot run {self.command[0]}: {error.strerror}"
            ) from error
        self._add(Process(self._started.pid))
        if self._held is not None:
            self._held.to_program(HELD_SECONDS)

    def _popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self._environment}

        def popen(before: Callable[[], None] | None) -> subprocess.Popen[bytes]:
            return _popen_as_caller(command, self.output, environment, before)

        return popen(None) if self._held is None else self._held.start(popen)

    def _add(self, process: Process) -> None:
        if process.pid not in self._processes:
            self._processes[process.pid] = process
            self._seen.append(process.pid)

    @property
    def pids(self) -> tuple[int, ...]:
        """The PIDs of all processes so far, in the order in which they joined."""
        self._begin()
        return tuple(self._seen)

    def alive(self) -> list[Process]:
        """Return the processes that still run, and release the others."""
        for pid, process in list(self.processes.items()):
            is_over = process is self.ours and self.status is not None
            if is_over or not process.alive():  # our zombie counts as alive
                process.close()
                del self.processes[pid]
                self._ended.append(pid)
        return list(self.processes.values())

    @property
    def status(self) -> int | None:
        """The exit status of our program; negative for a signal."""
        if self._held is not None and not self._held.is_over:
            return None  # poll would report a ptrace stop as the end
        return None if self._started is None else self._started.poll()

    @property
    def ours_has_ended(self) -> bool:
        """True if our program has ended, or if no program was given."""
        return self.command is None or not self.alive()

    def take_ended(self) -> list[int]:
        """Return the PIDs that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def refresh(self, known: Sequence[int] = ()) -> list[Process]:
        """Add new children and ``known`` PIDs; return the new processes."""
        fresh: list[Process] = []
        if not self.follow:
            return fresh
        waiting = [c for pid in list(self.processes) for c in _children_of(pid)]
        waiting += [pid for pid in known if pid not in self.processes]
        while waiting:
            pid = waiting.pop()
            if pid in self.processes:
                continue
            try:
                process = Process(pid)
            except RbtraceError:
                continue  # it has already ended
            self._add(process)
            self._joined.add(process.identity)
            fresh.append(process)
            waiting += _children_of(pid)
        return fresh

    def has_joined(self, process: Process) -> bool:
        """Return whether it joined as a child: the user did not choose it."""
        return process.identity in self._joined

    def chosen(self) -> list[Process]:
        """Return the living processes that were named, or our program."""
        return [one for one in self.alive() if not self.has_joined(one)]

    def untracked_children(self) -> set[int]:
        """Return the PIDs of children that are not targets and cannot join."""
        if self.follow:
            return set()
        found = {c for pid in list(self.processes) for c in _children_of(pid)}
        return found.difference(self._seen)

    def close(self) -> None:
        """Release all processes, and terminate a program that we started."""
        self.release()
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        if self._started is not None and self._started.poll() is None:
            self._started.send_signal(signal.SIGTERM)
            try:
                self._started.wait(5)
            except subprocess.TimeoutExpired:
                self._started.kill()
                self._started.wait()


def _children_of(pid: int) -> list[int]:
    try:
        return children(pid)
    except (RbtraceError, OSError):
        return []


class _Options(TypedDict, total=False):
    """Options of ``subprocess.Popen``."""

    stdin: int
    stdout: int
    stderr: int
    user: int
    group: int
    extra_groups: list[int]
    env: Mapping[str, str]
    preexec_fn: Callable[[], None] | None


def _runs_ruby(process: Process) -> bool:
    try:
        find_ruby(process).close()
    except RbtraceError:
        return False
    return True


def _popen_as_caller(
    words: Sequence[str],
    output: int | None,
    environment: Mapping[str, str],
    before: Callable[[], None] | None,
) -> subprocess.Popen[bytes]:
    """Start a program, under sudo as the calling user, without root's privileges.

    ``before`` is called in the new process before it executes the program.
    """
    locked_memory.restore_limit()
    options: _Options = {"env": environment, "preexec_fn": before}
    if output is not None:
        options["stdin"] = subprocess.DEVNULL
        options["stdout"] = options["stderr"] = output
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if os.geteuid() == 0 and user and group:
        name, extra = os.environ.get("SUDO_USER", ""), [int(group)]
        if name:
            extra = os.getgrouplist(name, int(group))
        options["user"], options["group"] = int(user), int(group)
        options["extra_groups"] = extra
    return subprocess.Popen(words, **options)


def parse_pids(text: str) -> list[int]:
    """Parse ``12,34``.

    Raises:
        UsageError: A word is not a PID.
        NoSuchTarget: A PID is out of range.
    """
    try:
        pids = [int(word) for word in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{text!r} is not a pid",
            "Give PID, PID,PID…, --ps REGEX, or -- COMMAND…",
        ) from None
    for pid in pids:
        if not 0 < pid < 1 << 31:
            raise NoSuchTarget(f"there is no process {pid}")
    return list(dict.fromkeys(pids))
