"""Look into running Ruby processes: USDT probes, latencies, stacks.

As a library it has what ``rbtrace_py.library`` lists, imported when it is first used:

    from rbtrace_py import attach

    with attach(1234) as ruby:
        for sample in ruby.samples(seconds=1):
            print(sample.thread.name, sample.stack.frames[-1].name)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rbtrace_py.library import (
        BadRecording,
        Dump,
        DumpedFiber,
        DumpedThread,
        Filters,
        Frame,
        FrameKind,
        Meta,
        NoSuchTarget,
        NotPermitted,
        NotRuby,
        Profile,
        RbtraceError,
        Recorded,
        Row,
        RubyThread,
        Sample,
        SampleFlags,
        Sampler,
        Share,
        Stack,
        StackCounts,
        Statistics,
        ThreadState,
        UnknownRuby,
        UsageError,
        attach,
        count,
        dump,
        dump_core,
        fold,
        formats,
        read_recording,
        render,
    )

__version__ = "0.1.0"

__all__ = [
    "BadRecording",
    "Dump",
    "DumpedFiber",
    "DumpedThread",
    "Filters",
    "Frame",
    "FrameKind",
    "Meta",
    "NoSuchTarget",
    "NotPermitted",
    "NotRuby",
    "Profile",
    "RbtraceError",
    "Recorded",
    "Row",
    "RubyThread",
    "Sample",
    "SampleFlags",
    "Sampler",
    "Share",
    "Stack",
    "StackCounts",
    "Statistics",
    "ThreadState",
    "UnknownRuby",
    "UsageError",
    "__version__",
    "attach",
    "count",
    "dump",
    "dump_core",
    "fold",
    "formats",
    "read_recording",
    "render",
]


def __getattr__(name: str) -> object:
    # The command starts here too, and has no time for what it does not need.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module("rbtrace_py.library"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
