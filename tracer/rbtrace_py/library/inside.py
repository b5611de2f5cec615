"""Requests to the agent inside a process, and loading and stopping the agent."""

from __future__ import annotations

from dataclasses import dataclass

from rbtrace_py.errors import RbtraceError
from rbtrace_py.library.targets import Pids, Subject
from rbtrace_py.linux.process import Process
from rbtrace_py.model.attach import AttachResult, Detached
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.process_state import MemoryUse, Raised, ThreadBacktrace
from rbtrace_py.session.inside import attach, commands
from rbtrace_py.session.probes.probes import list_probes


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The value of Ruby code that ran in a process.

    Attributes:
        value: ``inspect`` of the value.
        class_name: Class of the value.
        time_ns: Run time of the code in ns.
        out: Standard output of the code.
        err: Standard error of the code.
    """

    value: str
    class_name: str
    time_ns: int
    out: str
    err: str


class RubyError(RbtraceError):
    """Ruby code in a process raised an exception.

    Attributes:
        class_name: Class of the exception.
        message: Message of the exception.
        backtrace: Backtrace of the exception, the innermost call first.
        out: Standard output of the code before the exception.
        err: Standard error of the code before the exception.
    """

    def __init__(self, raised: Raised, out: str, err: str) -> None:
        super().__init__(f"{raised.class_name}: {raised.message}")
        self.class_name = raised.class_name
        self.message = raised.message
        self.backtrace = raised.backtrace
        self.out = out
        self.err = err


def eval(  # noqa: A001 -- the command's name
    pid: int,
    code: str,
    *,
    file: str | None = None,
    timeout: float = commands.EVAL_SECONDS,
    attach: bool = False,
    yes: bool = False,
) -> Evaluation:
    """Run Ruby code in a new thread of a process, and return its value.

    Args:
        pid: A process that has loaded the agent.
        code: Ruby code; its side effects remain.
        file: Name of the code in ``__FILE__`` and backtraces.
        timeout: Seconds after which the code is aborted.
        attach: Load the agent if the process lacks it.
        yes: Load it even if a seccomp filter cannot be read; see ``attach_agent``.

    Raises:
        RubyError: The code raised an exception.
        NoSuchTarget: The process does not exist or lacks the agent.
        NotPermitted: The kernel or the agent denies permission.
    """
    out, err = commands.CollectedOutput(), commands.CollectedOutput()
    with Subject(pid, attach=attach, yes=yes).opened() as targets:
        [process] = commands.processes(targets)
        found = commands.evaluate(process, code, out, err, file, timeout)
    if isinstance(found, Raised):
        raise RubyError(found, out.text, err.text)
    return Evaluation(found.value, found.class_name, found.time_ns, out.text, err.text)


def backtraces(
    pid: int, *, attach: bool = False, yes: bool = False
) -> list[ThreadBacktrace]:
    """Return Ruby's own backtrace of each thread, the agent's thread included.

    Args:
        pid: A process that has loaded the agent.
        attach: Load the agent if the process lacks it.
        yes: Load it even if a seccomp filter cannot be read; see ``attach_agent``.

    Raises:
        RbtraceError: See ``eval``.
    """
    with Subject(pid, attach=attach, yes=yes).opened() as targets:
        [process] = commands.processes(targets)
        return commands.backtraces(process)


def memory(pid: int, *, attach: bool = False, yes: bool = False) -> MemoryUse:
    """Return how much memory a process uses, and for what.

    Args:
        pid: A process that has loaded the agent.
        attach: Load the agent if the process lacks it.
        yes: Load it even if a seccomp filter cannot be read; see ``attach_agent``.

    Raises:
        RbtraceError: See ``eval``.
    """
    with Subject(pid, attach=attach, yes=yes).opened() as targets:
        [process] = commands.processes(targets)
        return commands.memory(process)


def attach_agent(pid: int, *, hook: bool = True, yes: bool = False) -> AttachResult:
    """Load the agent into a process that has not loaded it.

    The process is paused for about a millisecond. The agent consists of a sleeping
    thread and a socket, and stays until the process ends.

    Args:
        pid: Process ID.
        hook: Enable method events. This needs a C compiler once if the package has no
            compiled hook for this machine.
        yes: Load the agent even if the process has a seccomp filter that cannot be
            read. A filter that kills may end the process.

    Returns:
        The cost of loading. ``cost`` is None if the process already had the agent.

    Raises:
        RbtraceError: Loading could harm the process, or it does not run Ruby.
    """
    with Process(pid) as process:
        confirm = Subject(pid, yes=yes).confirm
        return attach.attach(
            process, lambda line: None, with_hook=hook, confirm=confirm
        )


def detach_agent(pid: int, *, yes: bool = False) -> Detached:
    """Stop the agent in a process.

    Args:
        pid: Process ID.
        yes: Stop it even if that ends another tracer's work.

    Raises:
        RbtraceError: The process has no agent, or another tracer uses it.
    """
    with Process(pid) as process:
        return attach.detach(process, Subject(pid, yes=yes).confirm)


def probes(pids: Pids, *words: str) -> list[Listed]:
    """Return the USDT probes of processes, and whether they are traced.

    Args:
        pids: One process or several.
        *words: Names or globs of probes to return.

    Raises:
        NoSuchProbe: A word matches no probe.
    """
    with Subject(pids).opened() as targets:
        listing = list_probes(targets, words)
        if listing.missing is not None:
            raise listing.missing
        return listing.probes
