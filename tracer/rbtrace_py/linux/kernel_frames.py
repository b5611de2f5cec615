"""The kernel's frames: names of its functions, and stacks with these functions."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from rbtrace_py.errors import NotPermitted, RbtraceError
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.procfs import read_file
from rbtrace_py.model.stacks import Frame, FrameKind, Stack

_SYMBOLS = "/proc/kallsyms"
_MOST_BYTES = 1 << 28
_CODE = b"tTwW"
_LARGEST = 1 << 16
"""Maximum size of a module's function or a BPF program in bytes."""
_SLEEPS_IN = re.compile(rb"\[<\w+>\] ([^\s+]+)\+\S+(?: (\[[^\s\]]+\]))?")
_MARK = "_[k]"
"""Suffix of kernel functions, as in perf and flamegraph.pl."""
_END = r"(?:\.\w+)*(?: \[\w+\])?\n"
_CALLER = (
    r"(?:bpf_trace_run\d+|__bpf_trace_\w+|__traceiter_\w+|trace_call_bpf"
    rf"|perf_trace_\w+|perf_syscall_(?:enter|exit)|perf_call_bpf_(?:enter|exit)){_END}"
)
_OWN = re.compile(
    rf"(?:(?:bpf_prog_\w+{_END})+|\[unknown\]\n(?={_CALLER}))?"
    rf"(?:(?:{_CALLER})+(?:(?:syscall_trace_enter|syscall_exit_work){_END})?)?"
)
"""Our tracepoint program (Linux 5.10 may list it twice), and the functions through
which the kernel calls it. The last two functions also have other callees; match them
only if they call ours."""
_MOST_STACKS = 1 << 14


class KernelFrames:
    """Names kernel addresses and adds kernel frames to stacks. Its cache is bounded.

    Raises:
        NotPermitted: The kernel hides the names of its functions.
    """

    def __init__(self) -> None:
        self._symbols = KernelSymbols()
        self._frames: dict[str, Frame] = {}
        self._stacks: dict[tuple[Stack, bytes, bool], Stack] = {}

    def add_frames(self, stack: Stack, addresses: memoryview, is_tick: bool) -> Stack:
        """Return a stack with the kernel's frames on it.

        Args:
            stack: The Ruby stack.
            addresses: Kernel addresses, the newest first.
            is_tick: A tick interrupted the kernel. If False, the newest frames lead to
                our program, and are removed.
        """
        key = (stack, addresses.tobytes(), is_tick)
        found = self._stacks.get(key)
        if found is None:
            if len(self._stacks) >= _MOST_STACKS:
                self._stacks.clear()
            found = self._stacks[key] = self._with(
                stack, self._names(addresses, is_tick)
            )
        return found

    def add_sleeping_frames(self, stack: Stack, process: Process, tid: int) -> Stack:
        """Return the stack of a sleeping thread with the kernel frames it sleeps in."""
        return self._with(stack, sleeping_stack(process, tid))

    def _names(self, addresses: Sequence[int], is_tick: bool) -> list[str]:
        """Name functions, without those that only run because of our program."""
        names = [
            # A return address may be the start of the next function.
            self._symbols.name(address - (at > 0 or not is_tick)) or "[unknown]"
            for at, address in enumerate(addresses)
        ]
        return names if is_tick else without_own(names)

    def _with(self, stack: Stack, names: Iterable[str]) -> Stack:
        frames = [self._frame(name) for name in names]
        return Stack((*stack.frames, *reversed(frames)))

    def _frame(self, function: str) -> Frame:
        frame = self._frames.get(function)
        if frame is None:
            name = f"{function}{_MARK}"
            frame = Frame(FrameKind.KERNEL, name, name, "", None)
            self._frames[function] = frame
        return frame


def without_own(names: Sequence[str]) -> list[str]:
    """Return functions, the newest first, without those that lead to our program."""
    text = "".join(f"{name}\n" for name in names)
    return _OWN.sub("", text, count=1).splitlines()


class KernelSymbols:
    """Kernel functions by address, from ``/proc/kallsyms``.

    The file is read at the first call of ``name``, so that BPF programs loaded after
    this object was created have names too. Raises NotPermitted if the kernel hides the
    addresses.
    """

    def __init__(self) -> None:
        try:
            with open(_SYMBOLS, "rb") as file:
                is_shown = any(int(line.split(b" ", 1)[0], 16) for line in file)
        except OSError as error:
            raise _hidden(f"{_SYMBOLS}: {error.strerror}") from error
        if not is_shown:
            raise _hidden("their addresses are hidden")

    @cached_property
    def _table(self) -> tuple[array[int], list[bytes]]:
        rows = sorted(_rows(read_file(_SYMBOLS, _MOST_BYTES)), key=lambda row: row[0])
        return array("Q", (address for address, _ in rows)), [name for _, name in rows]

    def name(self, address: int) -> str | None:
        """Return the function at an address, such as ``ext4_readdir [ext4]``.

        None if the address is data, or if its code was loaded later.
        """
        addresses, names = self._table
        at = bisect_right(addresses, address) - 1
        if at < 0:
            return None
        start = addresses[at]
        # The kernel, too, uses the first of several names for one address.
        name = names[bisect_right(addresses, start - 1)]
        if name.endswith(b"]") and address - start >= _LARGEST:
            return None
        return name.decode("ascii", "replace") or None


def _hidden(why: str) -> NotPermitted:
    return NotPermitted(
        f"cannot read the names of kernel functions: {why}",
        "Run as root or with CAP_SYSLOG, where kernel.kptr_restrict is 0 or 1: `sysctl"
        " kernel.kptr_restrict`",
        root_helps=True,
    )


def _rows(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each address with its function's name, or b"" if it is not code."""
    for line in text.splitlines():
        address, _, rest = line.partition(b" ")
        is_code = rest[:1] in _CODE
        yield int(address, 16), rest[2:].replace(b"\t", b" ") if is_code else b""


def sleeping_stack(process: Process, tid: int) -> list[str]:
    """Return the functions in which a thread sleeps, newest first.

    The kernel omits the scheduler's functions. The list is empty if the thread has
    ended or is on CPU, or if we lack CAP_SYS_ADMIN.
    """
    try:
        text = process.read(f"task/{tid}/stack")
    except RbtraceError:
        return []
    found = _SLEEPS_IN.findall(text)
    return [b" ".join(filter(None, one)).decode("ascii", "replace") for one in found]
