"""Stacks as rows of labels, the input of folded text, flame graphs, and other formats.

The text of a frame is a contract (docs/formats): ``Class#method path``, or with lines
``Class#method path:line``. It does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from posixpath import basename
from typing import NamedTuple

from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.stacks import Frame, FrameKind, RubyThread, ThreadState


@dataclass(frozen=True, slots=True)
class Folding:
    """Conversion of stacks to rows.

    Attributes:
        lines: True if frames of one method on different lines differ.
        threads: True if threads are outermost frames.
        states: True if thread states are outermost frames.
        reverse: True if the innermost frame comes first.
    """

    lines: bool = False
    threads: bool = False
    states: bool = False
    reverse: bool = False


class Label(NamedTuple):
    """One frame of a row.

    Attributes:
        name: Short name.
        text: Full text, unique to the label.
        kind: Kind of the frame; None for a thread, a process, or a state.
    """

    name: str
    text: str
    kind: FrameKind | None


@dataclass(slots=True)
class Folded:
    """Rows of label numbers, the root first, and their weights."""

    labels: list[Label] = field(default_factory=list)
    stacks: dict[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        return sum(self.stacks.values())


def fold(counts: StackCounts, folding: Folding) -> Folded:
    """Return the rows of all counted stacks, with equal rows merged.

    Args:
        counts: Counted stacks.
        folding: Conversion of stacks to rows.
    """
    found = Folded()
    labels = Labels(found.labels, folding)
    several = len(counts.pids) > 1
    last: tuple[Frame, ...] | None = None
    inner: tuple[int, ...] = ()
    for thread, state, frames, weight in counts.rows():
        if frames is not last:
            last, inner = frames, labels.of_frames(frames)
        key = labels.of_thread(thread, state, several) + inner
        found.stacks[key] = found.stacks.get(key, 0) + weight
    return found


class Labels:
    """Numbers of labels, in the order of first use."""

    def __init__(self, labels: list[Label], folding: Folding) -> None:
        self._labels = labels
        self._folding = folding
        self._numbers: dict[Label, int] = {}
        self._frames: dict[int, int] = {}
        self._kept: list[Frame] = []
        self._leading: dict[tuple[RubyThread, ThreadState], tuple[int, ...]] = {}

    def of_frames(self, frames: tuple[Frame, ...]) -> tuple[int, ...]:
        """Return the row of a stack without labels of its thread."""
        known = self._frames
        row = tuple(
            known[id(frame)] if id(frame) in known else self._frame(frame)
            for frame in frames
        )
        return row[::-1] if self._folding.reverse else row

    def of_thread(
        self, thread: RubyThread, state: ThreadState, several: bool
    ) -> tuple[int, ...]:
        """Return the first labels of a thread's rows; its process if ``several``."""
        key = (thread, state)
        if key not in self._leading:
            texts = []
            if self._folding.threads:
                texts = [f"[pid {thread.pid}]"] * several + [thread_text(thread)]
            if self._folding.states:
                texts.append(state_text(state))
            leading = tuple(self._number(Label(text, text, None)) for text in texts)
            self._leading[key] = leading
        return self._leading[key]

    def _frame(self, frame: Frame) -> int:
        text = frame_text(frame, self._folding.lines)
        number = self._number(Label(clean(frame.name), text, frame.kind))
        # Keep the frame, so that no other frame gets its id.
        self._kept.append(frame)
        self._frames[id(frame)] = number
        return number

    def _number(self, label: Label) -> int:
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self._labels)
            self._labels.append(label)
        return number


def frame_text(frame: Frame, lines: bool = False) -> str:
    """Return ``Class#method path:line`` with lines, else ``Class#method path``.

    An unknown line is ``?``. The text of a frame without a path is its name.
    """
    name = clean(frame.name)
    if not frame.path:
        return name
    if not lines:
        return f"{name} {clean(frame.path)}"
    return f"{name} {clean(frame.path)}:{'?' if frame.line is None else frame.line}"


def portable_label(label: Label) -> Label:
    """Return a label with only the base name of its file.

    Each release of a program usually has its own folder.
    """
    path = label.text.removeprefix(f"{label.name} ")
    if label.kind is None or path == label.text:
        return label
    return label._replace(text=f"{label.name} {basename(path)}")


def thread_text(thread: RubyThread, write: Callable[[str], str] | None = None) -> str:
    """Return ``[worker 1, tid 4213]``; ``write`` makes a name safe to show."""
    name = (write or clean)(thread.name) if thread.name else _nameless(thread)
    return f"[{name}]" if thread.tid is None else f"[{name}, tid {thread.tid}]"


def _nameless(thread: RubyThread) -> str:
    return "main" if thread.is_main else "thread"


def state_text(state: ThreadState) -> str:
    """Return ``[running]``."""
    return f"[{state.name.lower()}]"


def clean(text: str) -> str:
    """Return a printable text in which ``;`` is ``,``: it separates folded frames."""
    return printable(text).replace(";", ",")


def printable(text: str) -> str:
    """Return a text with ``?`` for unprintable characters; ``(unknown)`` if empty."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    return text or "(unknown)"
