"""Idle samples: threads that wait for work in the code of a server or a queue.

Reports omit idle samples, because they would dominate the report of any server. A
thread that waits in the application's own code, or for a Mutex, is never idle. A thread
that sleeps, or waits for another thread or for input, is idle if all its frames belong
to a single gem: the server's main thread, reapers, and monitors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from posixpath import basename, dirname

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sourcepaths import gem_path, is_library
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
"""C methods: ``TCPServer#accept``, ``IO.select``, ``NIO::Selector#select``, and in
fiber schedulers, ``IO::Event::Selector::EPoll#select``."""

_OWN_WAITS = re.compile(r"Thread#(join|value)|IO#wait_readable")
"""Waits that are idle if all frames belong to one gem, as in Puma's main thread."""

_OWN_SLEEP = re.compile(r"Kernel[#.]sleep")
"""Another such wait, but not in a main thread: a gem's program may have to sleep."""

_MUTEX_SLEEP = re.compile(r"(Thread::)?Mutex#sleep")
"""The method that ConditionVariable#wait calls before Ruby 4.0."""

_OURS = re.compile(r"(block .*in )?Tracepoint::(Agent::Server#|Puma\.sampler?$).*")
"""Our threads: one waits for commands (ext/agent/agent/server.rb), the other fires
``puma:stats`` (ruby/lib/tracepoint/puma.rb)."""

_STARTERS = ("<main>", "<top (required)>")
_FOLDERS_OF_STARTERS = ("bin", "sbin", "exe")


def is_idle(state: ThreadState, frames: tuple[Frame, ...]) -> bool:
    """Return whether a thread with these frames, root first, waits for work."""
    if state is not ThreadState.SLEEPING:
        return False
    called = _called(frames)
    if not called:
        return False
    own = [frame for frame in called if _has_file(frame)]
    if _waits(called):
        of_library = [frame for frame in own if _is_library(frame)]
        others = (frame for frame in own if not _is_library(frame))
        return bool(of_library) and all(map(_is_starter, others))
    inner = called[-1].name
    if _OWN_SLEEP.fullmatch(inner):
        return _is_of_one_gem(own)
    if _OWN_WAITS.fullmatch(inner):
        return _is_of_one_gem([f for f in own if not _is_starter(f)])
    return False


def _is_of_one_gem(own: list[Frame]) -> bool:
    """Return whether all frames belong to one gem, ignoring wrappers of fork.

    Active Support wraps the fork of Puma's workers.
    """
    frames = [frame for frame in own if not frame.name.endswith(("#fork", ".fork"))]
    gems = {found and found[0] for found in (gem_path(f.path) for f in frames)}
    return len(gems) == 1 and None not in gems


def _is_library(frame: Frame) -> bool:
    """Return whether a frame belongs to a library, or to us, in any install path."""
    return is_library(frame.path) or _OURS.fullmatch(frame.name) is not None


def _has_file(frame: Frame) -> bool:
    """Return whether a frame has a file.

    Core methods lack one, in C and in Ruby (as Queue#pop since 3.2).
    """
    return frame.kind is FrameKind.RUBY and not frame.path.startswith("<internal:")


def _called(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the methods and blocks, without the wait marker and kernel frames."""
    if frames and frames[-1].kind is FrameKind.MARKER:
        frames = frames[:-1]
    return without_kernel(frames)


def _waits(frames: tuple[Frame, ...]) -> bool:
    """Return whether the innermost method waits for work."""
    inner = frames[-1]
    if _MUTEX_SLEEP.fullmatch(inner.name):
        return len(frames) > 1 and frames[-2].name.endswith("ConditionVariable#wait")
    if _WAITS.fullmatch(inner.name):
        return True
    is_native = inner.kind is FrameKind.C or inner.path.startswith("<internal:")
    return is_native and _NATIVE_WAITS.fullmatch(inner.name) is not None


def _is_starter(frame: Frame) -> bool:
    """Return whether the frame is of a script in a bin folder that loads a library."""
    folder = basename(dirname(frame.path))
    return frame.name in _STARTERS and folder in _FOLDERS_OF_STARTERS


def without_idle(profile: Profile) -> Profile:
    """Return the profile without idle samples; its statistics count them.

    Return the same profile if no samples, or all, are idle.
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
