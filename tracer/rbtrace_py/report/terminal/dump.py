"""``dump``: threads and their stacks, the innermost frame first."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread, Local, Locals
from rbtrace_py.model.stacks import Frame, FrameKind, SampleFlags, Stack, ThreadState
from rbtrace_py.model.waits import Wait
from rbtrace_py.report.paths import shown_path
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.waits import deadlock_text, thread_name, wait_text
from rbtrace_py.report.text import cut_left, escape, fitted, width, wrap
from rbtrace_py.report.units import duration

_INDENT = "    "
_KERNEL_STATES = {
    "D": "in the kernel",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended",
    "X": "ended",
}


def dump_lines(
    dump: Dump, style: Style, lines: bool = True, idle: bool = False
) -> Iterator[str]:
    """Yield a heading, and a paragraph for each thread.

    Args:
        dump: Dump of a process.
        style: Style of the lines.
        lines: True to show line numbers.
        idle: True to show each sleeping thread. Otherwise, threads with equal
            paragraphs share one.
    """
    frames = _Frames(style, lines, dump.folder)
    yield from _wrapped(_heading(dump), style, style.bold)
    yield from _wrapped(_when(dump, style), style, style.dim)
    for note in dump.notes:
        yield from _wrapped(f"({_shown(note, style)})", style, style.yellow)
    for first, paragraph, others in _alike(dump.threads, frames, style, idle):
        yield ""
        yield _title(first, style)
        if others:
            names = ", ".join(map(_named, others))
            many = f"{len(others)} more thread{'' if len(others) == 1 else 's'}"
            text = f"and {many}: {_shown(names, style)}"
            yield from _set_in(text, "  ", style, style.dim)
        yield from paragraph
    if dump.deadlocks:
        yield ""
    for waiters in dump.deadlocks:
        text = f"deadlock: {_shown(deadlock_text(waiters, style), style)}"
        yield from _set_in(text, "", style, style.red)


def _alike(
    threads: Sequence[DumpedThread], frames: _Frames, style: Style, idle: bool
) -> Iterator[tuple[DumpedThread, list[str], list[DumpedThread]]]:
    """Yield threads, the lines below each one's title, and others with equal lines."""
    found: dict[tuple[object, ...], tuple[DumpedThread, list[str], list[DumpedThread]]]
    found = {}
    for thread in threads:
        lines = list(_thread(thread, frames, style))
        is_alone = idle or thread.state is not ThreadState.SLEEPING
        key = (thread.kernel_state, *lines, *([thread] if is_alone else []))
        if key in found:
            found[key][2].append(thread)
        else:
            found[key] = thread, lines, []
    yield from found.values()


def _wrapped(text: str, style: Style, paint: Callable[[str], str]) -> Iterator[str]:
    for line in wrap(text, style.width):
        yield paint(fitted(line, style.width, style))


def _set_in(
    text: str, indent: str, style: Style, paint: Callable[[str], str]
) -> Iterator[str]:
    """Yield lines behind an indent; those after the first get two more columns.

    If programs read the report, the text stays on one line.
    """
    room = style.room - len(indent) - 2
    lines = [text] if style.is_whole else wrap(text, room)
    for number, line in enumerate(lines):
        yield indent + ("  " if number else "") + paint(fitted(line, room, style))


def _heading(dump: Dump) -> str:
    where = f"process {dump.pid}" if dump.pid else "a process"
    if dump.core is not None:
        where = f"core of {where}"
    return f"Ruby {dump.ruby_version}, {where}: {dump.command or '(no command line)'}"


def _when(dump: Dump, style: Style) -> str:
    count = len(dump.threads)
    words = [f"{count} thread{'' if count == 1 else 's'}"]
    if dump.core is not None:
        words.insert(0, dump.core)
        words.append(_signal(dump.signal))
    if dump.time_ns is not None:
        clock = datetime.fromtimestamp(dump.time_ns / 1e9)
        words.insert(0, f"{clock:%Y-%m-%d %H:%M:%S}")
    if dump.stopped_ns is not None:
        words.append(f"paused for {duration(dump.stopped_ns, style)}")
    if dump.failed:
        words.append(f"{dump.failed} could not be read")
    return ", ".join(word for word in words if word)


def _signal(number: int) -> str:
    if number == 0:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _named(thread: DumpedThread) -> str:
    """Return ``"worker 1" tid 28901``."""
    return f"{thread_name(thread.thread)} {next(_facts(thread))}"


def _title(thread: DumpedThread, style: Style) -> str:
    paint = _PAINTS.get(thread.state, Style.bold)
    name = _shown(thread_name(thread.thread), style)
    name = fitted(name, max(style.width - 40, 20), style)
    rest = ", ".join(_facts(thread))
    return f"{style.bold(name)} {paint(style, rest)}"


def _thread(thread: DumpedThread, frames: _Frames, style: Style) -> Iterator[str]:
    if thread.gvl_waiters:
        text = f"holds the GVL; threads that wait for it: {thread.gvl_waiters}"
        yield from _set_in(text, "  ", style, style.yellow)
    yield from _wait(thread.wait, style, "  ")
    yield from _stack(thread.stack, thread.flags, thread.locals, frames, style)
    for fiber in thread.fibers:
        yield from _fiber(fiber, frames, style)


_PAINTS = {
    ThreadState.RUNNING: Style.green,
    ThreadState.WAITING: Style.yellow,
    ThreadState.SLEEPING: Style.dim,
}


def _shown(text: str, style: Style) -> str:
    """Convert to ASCII if necessary. Texts of a dump are already escaped."""
    return escape(text, style) if style.ascii and not text.isascii() else text


def _wait(wait: Wait | None, style: Style, indent: str) -> Iterator[str]:
    if wait is not None:
        text = f"waits for: {_shown(wait_text(wait), style)}"
        yield from _set_in(text, indent, style, style.cyan)


def _facts(thread: DumpedThread) -> Iterator[str]:
    known = thread.thread
    yield f"tid {known.tid}" if known.tid is not None else "no kernel thread known"
    if known.ractor != 1:
        yield f"ractor {known.ractor}"
    if thread.kernel_state in _KERNEL_STATES:
        yield _KERNEL_STATES[thread.kernel_state]
        return
    if thread.state is not ThreadState.UNKNOWN:
        yield _STATES[thread.state]
    if thread.on_cpu:
        yield "on CPU"


_STATES = {
    ThreadState.RUNNING: "running",
    ThreadState.WAITING: "waiting for the GVL",
    ThreadState.SLEEPING: "sleeping",
}


def _fiber(fiber: DumpedFiber, frames: _Frames, style: Style) -> Iterator[str]:
    yield f"  {style.cyan(f'suspended fiber {fiber.address:#x}')}"
    yield from _wait(fiber.wait, style, _INDENT)
    yield from _stack(fiber.stack, fiber.flags, fiber.locals, frames, style)


def _stack(
    stack: Stack | None,
    flags: SampleFlags,
    locals_: Locals,
    frames: _Frames,
    style: Style,
) -> Iterator[str]:
    if stack is None:
        yield _INDENT + style.red("(its stack could not be read)")
        return
    if flags & SampleFlags.TRIMMED:
        yield _INDENT + style.yellow("(newest frames changed while read)")
    if not stack.frames:
        yield _INDENT + style.dim("(no Ruby frames)")
    for place in reversed(range(len(stack.frames))):
        yield from frames.lines(stack.frames[place])
        for one in locals_[place] if locals_ else ():
            yield _local(one, style)
    if flags & SampleFlags.TRUNCATED:
        yield _INDENT + style.yellow("(oldest frames missing)")


def _local(local: Local, style: Style) -> str:
    text = _shown(f"{local.name} = {local.value}", style)
    return 2 * _INDENT + fitted(text, style.room - 2 * len(_INDENT), style)


class _Frames:
    """Cached lines of frames, because most threads share their outer frames."""

    def __init__(self, style: Style, with_lines: bool, folder: str) -> None:
        self._style, self._with_lines = style, with_lines
        self._folder = folder
        self._known: dict[int, tuple[Frame, list[str]]] = {}

    def lines(self, frame: Frame) -> list[str]:
        known = self._known.get(id(frame))
        if known is None:
            place = _place(frame, self._with_lines, self._folder)
            lines = list(_frame(frame, place, self._style))
            # Keep the frame, so that no other frame gets its id.
            known = self._known[id(frame)] = (frame, lines)
        return known[1]


def _frame(frame: Frame, place: str, style: Style) -> Iterator[str]:
    """Yield name and place, on two lines if they do not fit on one.

    If programs read the report, both are on one line.
    """
    name = _shown(frame.name, style)
    place = _shown(place, style)
    if not place:
        yield _INDENT + fitted(name, style.room - len(_INDENT), style)
        return
    is_fitting = len(_INDENT) + width(name) + 2 + width(place) <= style.room
    if is_fitting or style.is_whole:
        yield f"{_INDENT}{name}  {style.dim(place)}"
        return
    yield _INDENT + fitted(name, style.room - len(_INDENT), style)
    place = cut_left(place, style.room - 2 * len(_INDENT), style)
    yield 2 * _INDENT + style.dim(place)


def _place(frame: Frame, lines: bool, folder: str) -> str:
    """Return ``path:line``. The place of a C function is its caller's."""
    line = "?" if frame.line is None else str(frame.line)
    path = shown_path(frame.path, folder)
    where = f"{path}:{line}" if path and lines else path
    return f"{where} (C)".strip() if frame.kind is FrameKind.C else where
