"""Checks that refuse processes which an injection could harm.

They do not touch the process.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

from rbtrace_py.agent.addresses import RubyAddresses
from rbtrace_py.errors import TASKS_HINT, NoSuchTarget, RbtraceError, VmNotStarted
from rbtrace_py.linux.cgroup_limits import memory_room, thread_room
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process, gone, parse_stat, parse_status
from rbtrace_py.linux.ptrace.pause import seize_refused

_EM_X86_64 = 62
_LEAST_ROOM = 8 << 20
"""Bytes that must be free: loading the agent takes up to 4 MiB, and if they are missing
in a cgroup, the kernel kills the process."""
DEFAULT_FILTERS = (
    "The default filters of Docker, Podman, and Kubernetes return errors and do not"
    " kill"
)
_LEAST_THREADS = 3
"""Two threads that load the agent and its library, and the thread of its server."""
_LOAD_IT = "or load the agent in the program itself: ruby -rtracepoint/agent"


class Refused(RbtraceError):
    """The request would put the process at risk. The process was not touched."""


def refuse(process: Process, why: str, hint: str = "") -> Refused:
    """Return the error, with the hint that always applies."""
    text = f"will not attach to process {process.pid}: {why}"
    return Refused(text, f"{hint}; {_LOAD_IT}" if hint else _LOAD_IT[3:])


def check(process: Process, ruby: RubyAddresses) -> None:
    """Raise an error unless code may be injected into ``process``.

    Raises:
        Refused: The reason is in its message.
        VmNotStarted: Ruby is still starting.
        NotPermitted: We may not write to its memory.
        NoSuchTarget: The process has ended.
    """
    _check_machine(process)
    _check_ruby(process, ruby)
    _check_room(process)
    _check_threads(process)
    check_state(process, ruby)
    MemoryFile(process).close()


def check_program(process: Process, before: bytes) -> None:
    """Raise RbtraceError if the process has executed another program.

    Facts about the former program are then invalid. Any of its threads may call exec.

    Args:
        process: The process.
        before: The former ``Process.program``.
    """
    program = process.program
    if program and program != before:
        raise RbtraceError(
            f"process {process.pid} now runs another program",
            "Try again if that is Ruby too",
        )


def check_state(process: Process, ruby: RubyAddresses) -> None:
    """Check conditions that may change at any time; see ``check``."""
    state = parse_stat(process.read(f"task/{process.pid}/stat")).state
    status = parse_status(process.read(f"task/{process.pid}/status"))
    if status.get("TracerPid", "0") != "0":
        raise seize_refused(process, process.pid)
    if state in "ZX":
        raise _without_main_thread(process)
    if state in "Tt":
        raise refuse(process, "it is stopped", f"Continue it: kill -CONT {process.pid}")
    _check_seccomp(process, status, ruby.filters)
    if "shstk" in status.get("x86_Thread_features", "").split():
        raise refuse(process, "it has a shadow stack, which forbids such calls")


def _check_seccomp(process: Process, status: Mapping[str, str], filters: int) -> None:
    """Check that its threads have the same filters, and no more than ``filters``.

    The filters themselves can be read only while the process is paused. A new thread
    inherits the filters of the thread that starts it, which may be any thread.
    """
    mode = status.get("Seccomp", "0")
    if mode not in "02":
        raise refuse(process, "it is in seccomp's strict mode")
    if filters_of(status) != filters:
        raise refuse(process, "it has just installed a seccomp filter", "Try again")
    if mode == "0":
        return
    of_all = {_filters(process, tid) for tid in process.threads()} - {None}
    if len(of_all) > 1:
        raise refuse(process, "its threads have different seccomp filters")


def _filters(process: Process, tid: int) -> int | None:
    """Return the number of filters of a thread; None if it has ended."""
    try:
        status = parse_status(process.read(f"task/{tid}/status"))
    except NoSuchTarget:
        return None
    return filters_of(status)


def filters_of(status: Mapping[str, str]) -> int:
    """Return the number of filters of a thread, from its ``status``.

    Before Linux 5.9 only their existence is known: the result is then 2.
    """
    return int(status.get("Seccomp_filters", status.get("Seccomp", "0")))


def _without_main_thread(process: Process) -> RbtraceError:
    if not process.alive():
        return gone(process.pid)
    return refuse(process, "its main thread has exited")


def _check_machine(process: Process) -> None:
    try:
        header = process.read("exe", 20)
    except NoSuchTarget:
        # A process loses its memory shortly before it has ended; all Rubies have some.
        raise gone(process.pid) from None
    is_here = platform.machine() == "x86_64"
    # e_ident[EI_CLASS] is ELFCLASS64, e_machine; this excludes x32 too.
    if not is_here or header[4] != 2 or header[18] != _EM_X86_64:
        raise refuse(process, "attaching works only on x86-64, with 64-bit programs")


def _check_room(process: Process) -> None:
    room = memory_room(process)
    if room is not None and room < _LEAST_ROOM:
        raise refuse(
            process,
            f"only {room >> 10:,} KiB of memory are available to it; loading the agent"
            f" may need {_LEAST_ROOM >> 10:,}, and the kernel may kill it",
            "Raise the limit of its cgroup (memory.max), or free memory",
        )


def _check_threads(process: Process) -> None:
    room = thread_room(process)
    if room is not None and room < _LEAST_THREADS:
        raise Refused(
            f"will not attach to process {process.pid}: its cgroup allows"
            f" {room} more threads; the agent needs {_LEAST_THREADS}",
            TASKS_HINT,
        )


def _check_ruby(process: Process, ruby: RubyAddresses) -> None:
    if ruby.vm == 0:
        raise VmNotStarted(
            f"the Ruby in process {process.pid} is still starting its VM", "Try again"
        )
    has_jobs = ruby.register_one or (ruby.preregister and ruby.trigger)
    if not ruby.eval_string or not has_jobs:
        raise refuse(
            process,
            "its Ruby does not export rb_eval_string and postponed jobs",
            "Use a Ruby whose libruby still has its dynamic symbols",
        )
