"""The kernel's frames, below the innermost Ruby frame of the same sample."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rbtrace_py.linux.kernel_symbols import KernelSymbols, sleeping_stack
from rbtrace_py.linux.process import Process
from rbtrace_py.model.stacks import Frame, FrameKind, Stack

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
_MOST_KNOWN = 1 << 14


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
            if len(self._stacks) >= _MOST_KNOWN:
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
