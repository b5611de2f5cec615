"""A process, held so that another process with its pid cannot be mistaken for it."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rbtrace_py.errors import NoSuchTarget, NotPermitted, RbtraceError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.permission import explain_denied
from rbtrace_py.linux.procfs import read_file
from rbtrace_py.linux.text import safe_text

NAMESPACES = ("mnt", "pid", "user")

_PF_KTHREAD = 0x00200000
"""``task_struct.flags``: a kernel thread (include/linux/sched.h)."""

_PF_EXITING = 4
"""``task_struct.flags``: exiting; the memory is freed before the process has ended."""

_PID_NAMESPACE_ROOT = 0xEFFFFFFC
"""Inode of the initial pid namespace: PROC_PID_INIT_INO (include/linux/proc_ns.h)."""

CMDLINE_LIMIT = 32768
_AUXV_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields used of ``/proc/PID/stat``; start time in ticks since boot."""

    comm: str
    state: str
    parent: int
    flags: int
    threads: int
    start_time: int


class Process(Closing):
    """A user-space process, identified by its pid and start time.

    All reads use a descriptor of ``/proc/PID``. They fail once the process is gone,
    even if another process gets its pid.

    Raises:
        NoSuchTarget: There is no such process, or it is a thread, a zombie, or a kernel
            thread.
        NotPermitted: It belongs to another user, and its maps may not be read.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd: int | None = None
        self._has_executed = False
        self._seen_at = time.monotonic()
        self._directory = _open_directory(pid)
        try:
            stat = parse_stat(self.read("stat"))
            self.start_time = stat.start_time
            self.comm = stat.comm
            self._check(stat)
            self._pidfd = _open_pidfd(pid)
            self._check_not_reused()
            self._program = self.program
        except BaseException:
            self.close()
            raise

    def _check(self, stat: Stat) -> None:
        status = parse_status(self.read("status"))
        owner = _first_int(status.get("Tgid", ""), self.pid)
        if owner != self.pid:
            raise NoSuchTarget(
                f"{self.pid} is a thread of process {owner}, not a process",
                f"Use {owner} instead",
            )
        if stat.flags & _PF_KTHREAD:
            raise NoSuchTarget(
                f"{self.pid} ({stat.comm}) is a kernel thread",
                "Give the pid of a program",
            )
        if stat.state in "ZX" and not self._has_other_threads():
            raise NoSuchTarget(
                f"process {self.pid} ({stat.comm}) has exited; its parent"
                f" {stat.parent} has not reaped it",
                "Give the pid of a running process",
            )
        self._check_readable()

    def _check_readable(self) -> None:
        try:
            os.close(self.open("maps"))
        except NotPermitted:
            # The agent in a process of our own user may still let us in.
            if self.uid != os.geteuid():
                raise

    def _check_not_reused(self) -> None:
        if parse_stat(self.read("stat")).start_time != self.start_time:
            raise gone(self.pid)

    def _has_other_threads(self) -> bool:
        """Return whether threads survive in a process whose main thread has ended."""
        tasks = self.threads()
        return any(self._task_state(tid) not in "ZX" for tid in tasks)

    def _task_state(self, tid: int) -> str:
        try:
            return parse_stat(self.read(f"task/{tid}/stat")).state
        except RbtraceError:
            return "X"

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open ``/proc/PID/name``; the caller closes the descriptor.

        Raises:
            NoSuchTarget: The process is gone or does not have this file.
            NotPermitted: The kernel denied permission.
        """
        try:
            return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._directory)
        except OSError as error:
            raise self.error(error, name) from error

    def read(self, name: str, limit: int = 1 << 24) -> bytes:
        """Return the contents of ``/proc/PID/name``; raises as ``open`` does."""
        try:
            return read_file(name, limit, self._directory)
        except OSError as error:
            raise self.error(error, name) from error

    def readlink(self, name: str) -> str | None:
        """Return the target of the link ``/proc/PID/name``, or None."""
        try:
            return os.readlink(name, dir_fd=self._directory)
        except OSError:
            return None

    def error(self, error: OSError, doing: str) -> RbtraceError:
        """Return our error for a failed access to ``/proc/PID/doing``."""
        if self._directory < 0:
            # It is closed: its owner saw that it had ended, or no longer needs it.
            return gone(self.pid)
        if error.errno in (errno.EACCES, errno.EPERM):
            return explain_denied(self.pid, doing)
        if error.errno in (errno.ENOENT, errno.ESRCH) and not self.is_ending():
            return NoSuchTarget(f"process {self.pid} has no {doing}")
        if error.errno in (errno.ENOENT, errno.ESRCH, errno.EINVAL):
            return gone(self.pid)
        return RbtraceError(f"process {self.pid}, {doing}: {error.strerror}")

    def alive(self) -> bool:
        """Return whether the process is still running. A zombie is not."""
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return not poll.poll(0)
        try:
            stat = parse_stat(read_file("stat", dir_fd=self._directory))
        except (OSError, RbtraceError):
            return False
        return stat.state not in "ZX" or self._has_other_threads()

    def has_its_pid(self) -> bool:
        """Return whether no other process can have the pid yet.

        A zombie still has it.
        """
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, 0)
                return True
            except ProcessLookupError:
                return False
            except OSError:
                pass  # another user's process
        return self.alive()

    def is_ending(self) -> bool:
        """Return whether it is exiting, when its memory and files may be freed."""
        try:
            stat = parse_stat(read_file("stat", dir_fd=self._directory))
        except (OSError, RbtraceError):
            return True
        return bool(stat.flags & _PF_EXITING) or not self.alive()

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for its end; return whether it has ended."""
        if self._pidfd is None:
            select.select([], [], [], timeout)
            return not self.alive()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(max(0, int(timeout * 1000))))

    @property
    def identity(self) -> tuple[int, int]:
        """Pid and start time, which together are unique."""
        return (self.pid, self.start_time)

    @property
    def program(self) -> bytes:
        """Identity of the running program, which each exec changes; b"" if unknown.

        It is the auxiliary vector, which contains the address of random bytes that the
        kernel chooses at each exec.
        """
        try:
            return self.read("auxv", _AUXV_LIMIT)
        except RbtraceError:
            return b""

    @property
    def cpu_ns(self) -> int | None:
        """CPU time in ns, including that of ended threads; None if it has ended."""
        try:
            # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of linux/posix-timers_types.h
            return time.clock_gettime_ns(~self.pid << 3 | 2)
        except OSError:
            return None

    @property
    def age(self) -> float:
        """Seconds since the process started, or since an exec was noticed.

        An exec before this object was created goes unnoticed.
        """
        self._notice_exec()
        # The clock of its start time.
        since_start = time.clock_gettime(time.CLOCK_BOOTTIME) - (
            self.start_time / os.sysconf("SC_CLK_TCK")
        )
        return self.seen if self._has_executed else since_start

    @property
    def seen(self) -> float:
        """Seconds since this object was created, or since an exec was noticed."""
        self._notice_exec()
        return time.monotonic() - self._seen_at

    def _notice_exec(self) -> None:
        program = self.program
        if program and program != self._program:
            self._program = program
            self._seen_at = time.monotonic()
            self._has_executed = True

    @property
    def cmdline(self) -> list[str]:
        """The program's command line, safe to print; empty if unknown."""
        try:
            return split_cmdline(self.read("cmdline", CMDLINE_LIMIT))
        except RbtraceError:
            return []

    @property
    def cwd(self) -> str | None:
        """Raw path of the working directory in the process's own root.

        None if it is unknown or outside the root.
        """
        found, root = self.readlink("cwd"), self.readlink("root")
        if found is None or root is None:
            return None
        root = root.rstrip("/")
        if found == root:
            return "/"
        return found.removeprefix(root) if found.startswith(f"{root}/") else None

    @property
    def folder(self) -> str:
        """Working directory as the process sees it, safe to print.

        Empty if it is unknown or ``/``, which contains all files anyway.
        """
        found = self.cwd or "/"
        return "" if found == "/" else safe_text(os.fsencode(found))

    @property
    def exe(self) -> str | None:
        """Path of its program in its own root; ends with `` (deleted)`` if deleted."""
        link = self.readlink("exe")
        return None if link is None else safe_text(os.fsencode(link))

    @property
    def uids(self) -> tuple[int, int, int, int]:
        """Real, effective, saved, and file system user ID (``status``, Uid)."""
        words = parse_status(self.read("status")).get("Uid", "").split()
        numbers = [int(word) for word in words if word.isdigit()]
        if len(numbers) != 4:
            raise gone(self.pid)
        return (numbers[0], numbers[1], numbers[2], numbers[3])

    @property
    def uid(self) -> int:
        """The effective user ID."""
        return self.uids[1]

    def threads(self) -> list[int]:
        """Return the kernel's thread IDs, ascending."""
        try:
            fd = os.open("task", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        except OSError as error:
            raise self.error(error, "task") from error
        try:
            return _numbers(os.listdir(fd))
        except OSError as error:
            raise self.error(error, "task") from error
        finally:
            os.close(fd)

    def namespace(self, kind: str) -> int | None:
        """Return the inode of its ``mnt``, ``pid``, or ``user`` namespace, or None."""
        try:
            return os.stat(f"ns/{kind}", dir_fd=self._directory).st_ino
        except OSError:
            return None

    def foreign_namespaces(self) -> list[str]:
        """Return the NAMESPACES that are known to differ from ours."""
        pairs = {
            kind: (_own_namespace(kind), self.namespace(kind)) for kind in NAMESPACES
        }
        return [
            kind
            for kind, (own, its) in pairs.items()
            if own is not None and its is not None and own != its
        ]

    def close(self) -> None:
        """Close the descriptors. Closing twice does nothing."""
        fds = (self._pidfd, self._directory)
        self._pidfd, self._directory = None, -1
        for fd in fds:
            if fd is not None and fd >= 0:
                os.close(fd)

    def __repr__(self) -> str:
        return f"Process({self.pid}, {self.comm!r})"


def gone(pid: int) -> NoSuchTarget:
    """Return the error for a process that has ended."""
    return NoSuchTarget(f"process {pid} has ended")


def _open_directory(pid: int) -> int:
    missing = NoSuchTarget(
        f"there is no process {pid}", "List the processes of this machine with `ps -e`"
    )
    if not 0 < pid < 1 << 31:
        raise missing
    try:
        return os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        raise missing from None
    except PermissionError:
        raise explain_denied(pid, f"/proc/{pid}") from None


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise gone(pid) from None
    except OSError:
        return None


def parse_stat(data: bytes) -> Stat:
    """Parse ``/proc/PID/stat``; a comm may contain spaces and parentheses.

    Raises:
        NoSuchTarget: The line is malformed, because the process has ended.
    """
    opening, closing = data.find(b"("), data.rfind(b")")
    fields = data[closing + 1 :].split()
    try:
        return Stat(
            comm=safe_text(data[opening + 1 : closing]),
            state=fields[0].decode("ascii"),
            parent=int(fields[1]),
            flags=int(fields[6]),
            threads=int(fields[17]),
            start_time=int(fields[19]),
        )
    except (IndexError, ValueError):
        raise NoSuchTarget("the process has ended") from None


def parse_status(data: bytes) -> dict[str, str]:
    """Parse ``/proc/PID/status`` into a dict of names and values."""
    pairs = (line.split(":", 1) for line in data.decode("utf-8", "replace").split("\n"))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def inner_id(status: Mapping[str, str], ours: int) -> int:
    """Return the ID of a process or thread in its own pid namespace.

    Args:
        status: The result of ``parse_status``.
        ours: The ID in our namespace, used if the kernel has no NSpid (before 4.1).
    """
    words = status.get("NSpid", "").split()
    return int(words[-1]) if words and words[-1].isdigit() else ours


def split_cmdline(data: bytes) -> list[str]:
    """Split the NUL-terminated words of ``/proc/PID/cmdline``; make them printable."""
    return [safe_text(word) for word in data.rstrip(b"\0").split(b"\0")] if data else []


def _first_int(text: str, default: int) -> int:
    words = text.split()
    return int(words[0]) if words and words[0].isdigit() else default


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())


def _own_namespace(kind: str) -> int | None:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return None


USE_HOST_PIDS = (
    "Run on the host, or in a container with the host's pids (--pid=host,"
    " hostPID: true)"
)
"""Hint used if ``host_pid_namespace`` is false."""


def host_pid_namespace() -> bool:
    """Return whether we are in the initial pid namespace, whose pids BPF reports."""
    return _own_namespace("pid") == _PID_NAMESPACE_ROOT
