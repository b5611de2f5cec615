"""speedscope's file format: a sampled profile for each thread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rbtrace_py import __version__
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.model.stacks import Frame, FrameKind, RubyThread, Stack
from rbtrace_py.report.exchange.rows import printable, thread_text
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.terminal.weights import idle_text

Document = dict[str, object]

_Key = tuple[FrameKind, str, str, int | None]
_FILES = {FrameKind.C: "(C)", FrameKind.KERNEL: "(kernel)"}
_UNITS = {"ns": "nanoseconds", "bytes": "bytes"}


@dataclass(slots=True)
class _Samples:
    """The samples of one thread: indices of frames, root first, and weights."""

    stacks: list[list[int]] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)


def speedscope_pieces(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Yield a JSON document in pieces; threads with the most weight come first."""
    frames: dict[_Key, int] = {}
    threads = _by_thread(profile, frames, options.folding.lines)
    order = sorted(threads, key=lambda thread: -sum(threads[thread].weights))
    several = len({thread.pid for thread in order}) > 1
    unit = _UNITS.get(profile.unit, "none")
    profiles = (_profile(each, several, threads[each], unit) for each in order)
    return file_pieces(_name(profile, options), map(_frame, frames), profiles)


def file_pieces(
    name: str, frames: Iterable[Document], profiles: Iterable[Document]
) -> Iterator[str]:
    """Yield a speedscope file in pieces."""
    head = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": f"rbtrace-py {__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": list(frames)},
    }
    yield f'{json.dumps(head)[:-1]}, "profiles": ['
    for number, profile in enumerate(profiles):
        yield "," * bool(number) + json.dumps(profile)
    yield "]}\n"


def frame_document(name: str, file: str, line: int | None) -> Document:
    """Return a frame; ``file`` is empty if it is unknown."""
    found: Document = {"name": printable(name)}
    if file:
        found["file"] = printable(file)
    if line is not None:
        found["line"] = line
    return found


def _name(profile: Profile, options: ReportOptions) -> str:
    name = printable(options.title or profile.meta.command or "Ruby")
    own = profile.counts.statistics
    if not own.idle:
        return name
    return f"{name} ({idle_text(own.idle, own.unit)})"


def _by_thread(
    profile: Profile, frames: dict[_Key, int], lines: bool
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


def _key(frame: Frame, lines: bool) -> _Key:
    """Return the identity of a frame."""
    if frame.kind is FrameKind.C:
        return (frame.kind, frame.name, "", None)
    return (frame.kind, frame.name, frame.path, frame.line if lines else None)


def _frame(key: _Key) -> Document:
    kind, name, path, line = key
    return frame_document(name, path or _FILES.get(kind, ""), line)


def _profile(
    thread: RubyThread, has_pid: bool, samples: _Samples, unit: str
) -> Document:
    pid = f"[pid {thread.pid}] " if has_pid else ""
    return {
        "type": "sampled",
        "name": pid + thread_text(thread, printable),
        "unit": unit,
        "startValue": 0,
        "endValue": sum(samples.weights),
        "samples": samples.stacks,
        "weights": samples.weights,
    }
