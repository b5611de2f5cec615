"""The kernel's own frames, below the innermost Ruby frame of the same moment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rbtrace_py.linux.kernel_symbols import KernelSymbols, sleeping_stack
from rbtrace_py.linux.process import Process
from rbtrace_py.model.stacks import Frame, FrameKind, Stack

_MARK = "_[k]"
"""As perf and flamegraph.pl mark a kernel's function."""
_OWN = re.compile(
    r"(bpf_prog_\w+ \[bpf\]|bpf_trace_run\d+|__bpf_trace_\w+|__traceiter_\w+"
    r"|perf_trace_\w+|perf_syscall_(enter|exit)|perf_call_bpf_(enter|exit)"
    r"|trace_call_bpf|syscall_trace_enter|syscall_exit_work)(\.\w+)*"
)
"""Functions through which the kernel comes to a tracepoint's program, which is ours."""
_MOST_OWN = 8
"""Frames of them on a stack, at most."""
_MOST_KNOWN = 1 << 14


class KernelFrames:
    """Names addresses, and puts the frames upon stacks; bounded.

    Raises NotPermitted where the kernel does not name its functions.
    """

    def __init__(self) -> None:
        self._symbols = KernelSymbols()
        self._frames: dict[str, Frame] = {}
        self._stacks: dict[tuple[Stack, bytes], Stack] = {}

    def upon(self, stack: Stack, addresses: memoryview) -> Stack:
        """Return a stack with the frames of some addresses, the newest first."""
        key = (stack, addresses.tobytes())
        found = self._stacks.get(key)
        if found is None:
            if len(self._stacks) >= _MOST_KNOWN:
                self._stacks.clear()
            found = self._stacks[key] = self._with(stack, self._names(addresses))
        return found

    def upon_sleeper(self, stack: Stack, process: Process, tid: int) -> Stack:
        """Return the stack of a thread that sleeps with the frames it sleeps in."""
        return self._with(stack, sleeping_stack(process, tid))

    def _names(self, addresses: Sequence[int]) -> list[str]:
        """Name functions, without those that are there because we look."""
        names = [
            # A call returns behind itself, which may be another function's begin.
            self._symbols.name(address - bool(at)) or "[unknown]"
            for at, address in enumerate(addresses)
        ]
        own = [at for at, name in enumerate(names[:_MOST_OWN]) if _OWN.fullmatch(name)]
        return names[own[-1] + 1 :] if own else names

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
