"""speedscope's file format: a sampled profile for each thread."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from rbtrace_py import __version__
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.model.stacks import Frame, FrameKind, RubyThread, Stack
from rbtrace_py.report.exchange.rows import printable, thread_text
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.terminal.weights import idle_text

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"ns": "nanoseconds", "bytes": "bytes"}


@dataclass(slots=True)
class _Samples:
    """The samples of one thread: indices of frames, root first, and weights."""

    stacks: list[list[int]] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


def speedscope_pieces(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """One JSON document, in pieces; threads with the most weight come first."""
    frames: dict[tuple[object, ...], int] = {}
    threads = _by_thread(profile, frames, options.folding.lines)
    order = sorted(threads, key=lambda thread: -sum(threads[thread].weights))
    head = {
        "$schema": SCHEMA,
        "exporter": f"rbtrace-py {__version__}",
        "name": _name(profile, options),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in frames]},
    }
    yield f'{json.dumps(head)[:-1]}, "profiles": ['
    several = len({thread.pid for thread in order}) > 1
    for number, thread in enumerate(order):
        name = f"[pid {thread.pid}] " * several + thread_text(thread, printable)
        yield ("," * bool(number)) + json.dumps(
            _profile(name, threads[thread], profile.unit)
        )
    yield "]}\n"


def _name(profile: Profile, options: ReportOptions) -> str:
    name = printable(options.title or profile.meta.command or "Ruby")
    own = profile.counts.statistics
    if not own.idle:
        return name
    return f"{name} ({idle_text(own.idle, own.unit)})"


def _by_thread(
    profile: Profile, frames: dict[tuple[object, ...], int], lines: bool
) -> dict[RubyThread, _Samples]:
    found: dict[RubyThread, _Samples] = {}
    known: dict[Stack, list[int]] = {}
    for sample in profile.stream():
        stack = known.get(sample.stack)
        if stack is None:
            stack = known[sample.stack] = [
                frames.setdefault(_key(frame, lines), len(frames))
                for frame in sample.stack.frames
            ]
        own = found.setdefault(sample.thread, _Samples())
        own.stacks.append(stack)
        own.weights.append(sample.weight)
    return found


def _key(frame: Frame, lines: bool) -> tuple[object, ...]:
    """Return what makes frames differ: kind, name, path and line."""
    line = frame.line if lines else None
    if frame.kind is FrameKind.C:
        return (frame.kind, frame.name, "", None)
    return (frame.kind, frame.name, frame.path, line)


def _frame(key: tuple[object, ...]) -> dict[str, object]:
    kind, name, path, line = key
    found: dict[str, object] = {"name": printable(str(name))}
    if kind is FrameKind.C:
        found["file"] = "(C)"
    if kind is FrameKind.KERNEL:
        found["file"] = "(kernel)"
    if path:
        found["file"] = printable(str(path))
    if line is not None:
        found["line"] = line
    return found


def _profile(name: str, samples: _Samples, unit: str) -> dict[str, object]:
    return {
        "type": "sampled",
        "name": name,
        "unit": _UNITS.get(unit, "none"),
        "startValue": 0,
        "endValue": sum(samples.weights),
        "samples": samples.stacks,
        "weights": samples.weights,
    }
