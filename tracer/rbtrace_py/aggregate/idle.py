"""Idle samples: threads that wait for work, in a server's or a queue's own code.

A report leaves them out, as they would be most of every picture of a server. A thread
that waits in the application's own code is never one of them, nor one that waits for
a Mutex, another thread, or input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from posixpath import basename, dirname

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sourcepaths import is_library
from rbtrace_py.model.stacks import (
    Frame,
    FrameKind,
    Sample,
    Stack,
    ThreadState,
    without_kernel,
)

_WAITS = re.compile(
    r"(Thread::)?(Sized)?Queue#(pop|shift|deq)|(Thread::)?ConditionVariable#wait"
)
_NATIVE_WAITS = re.compile(r".*[#.](accept|sysaccept|select)")
"""Methods in C: ``TCPServer#accept``, ``IO.select``, ``NIO::Selector#select``, and of
schedulers, ``IO::Event::Selector::EPoll#select``."""

_MUTEX_SLEEP = re.compile(r"(Thread::)?Mutex#sleep")
"""The method that ConditionVariable#wait calls before Ruby 4.0."""

_AGENT = "Tracepoint::Agent::Server#"
"""Its thread waits for commands (ext/agent/agent/server.rb)."""

_STARTERS = ("<main>", "<top (required)>")
_FOLDERS_OF_STARTERS = ("bin", "sbin", "exe")


def is_idle(state: ThreadState, frames: tuple[Frame, ...]) -> bool:
    """Does a thread with these frames, the root first, wait for work?"""
    if state is not ThreadState.SLEEPING or not _waits(frames):
        return False
    own = [frame for frame in frames if _has_file(frame)]
    is_of_library = [_is_library(frame) for frame in own]
    others = (f for f, is_one in zip(own, is_of_library, strict=True) if not is_one)
    return any(is_of_library) and all(map(_is_starter, others))


def _is_library(frame: Frame) -> bool:
    """Is it a library's, or our agent's, wherever that is installed?"""
    return is_library(frame.path) or _AGENT in frame.name


def _has_file(frame: Frame) -> bool:
    """Ruby's own methods have none, be they in C or, as Queue#pop from 3.2, in Ruby."""
    return frame.kind is FrameKind.RUBY and not frame.path.startswith("<internal:")


def _waits(frames: tuple[Frame, ...]) -> bool:
    """Is the innermost method one that waits for work?"""
    if not frames:
        return False
    if frames[-1].kind is FrameKind.MARKER:  # what the kernel says it waits for
        frames = frames[:-1]
    frames = without_kernel(frames)
    if not frames:
        return False
    inner = frames[-1]
    if _MUTEX_SLEEP.fullmatch(inner.name):
        return len(frames) > 1 and frames[-2].name.endswith("ConditionVariable#wait")
    if _WAITS.fullmatch(inner.name):
        return True
    is_native = inner.kind is FrameKind.C or inner.path.startswith("<internal:")
    return is_native and _NATIVE_WAITS.fullmatch(inner.name) is not None


def _is_starter(frame: Frame) -> bool:
    """Is it a program's file in a bin folder, which only loads a library?"""
    folder = basename(dirname(frame.path))
    return frame.name in _STARTERS and folder in _FOLDERS_OF_STARTERS


def without_idle(profile: Profile) -> Profile:
    """The profile without idle samples, which its statistics count.

    The same profile if there are none, or if there is nothing else.
    """
    counts = profile.counts.without(is_idle)
    left_out = profile.counts.weight - counts.weight
    if counts.statistics.counted != "samples" or not left_out or not counts.weight:
        return profile
    counts.statistics.idle = left_out
    samples = profile.samples
    if samples is not None:
        samples = _remaining(samples)
    return replace(profile, counts=counts, samples=samples)


def _remaining(
    samples: Callable[[], Iterable[Sample]],
) -> Callable[[], Iterable[Sample]]:
    def remaining() -> Iterator[Sample]:
        known: dict[tuple[ThreadState, Stack], bool] = {}
        for sample in samples():
            key = (sample.state, sample.stack)
            if key not in known:
                known[key] = is_idle(sample.state, sample.stack.frames)
            if not known[key]:
                yield sample

    return remaining
