"""Descriptions of waits: ``Thread::Mutex 0x…, held by "worker" (tid 5)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rbtrace_py.model.stacks import RubyThread
from rbtrace_py.model.waits import Descriptor, OtherProcess, Wait, Waiter, WaitKind
from rbtrace_py.report.style import Style

_MOST_SHOWN = 3
"""Maximum number of descriptors or children shown of one wait; the rest is a number."""
_LONGEST_COMMAND = 60


def wait_text(wait: Wait) -> str:
    """Return the words after ``waits for:``, escaped but perhaps not ASCII."""
    text = _WORDS[wait.kind](wait)
    if wait.native:
        text += f"; native threads wait for: {_descriptors(wait.native, wait.call)}"
    if wait.seconds is None or wait.kind is WaitKind.SLEEP:
        return text
    return f"{text}, for {wait.seconds:g} s at most"


def deadlock_text(waiters: Sequence[Waiter], style: Style) -> str:
    """Return ``"a" (tid 5) -> "b" (tid 6) -> "a"``."""
    names = [waiter_name(one) for one in waiters]
    return f" {style.pick('→', '->')} ".join([*names, names[0]])


def thread_name(thread: RubyThread) -> str:
    """Return ``"worker"``; Ruby gives the main thread no name."""
    name = thread.name or ("main" if thread.is_main else "")
    return f'"{name}"' if name else "thread"


def waiter_name(waiter: Waiter) -> str:
    """Return ``"worker" (tid 5)``, or a fiber of it."""
    tid = waiter.thread.tid
    name = thread_name(waiter.thread)
    name = name if tid is None else f"{name} (tid {tid})"
    if waiter.has_ended:
        return f"an ended fiber of {name}"
    if waiter.is_suspended and not waiter.fiber:
        return f"another fiber of {name}"
    if waiter.is_suspended:
        return f"suspended fiber {waiter.fiber:#x} of {name}"
    return name


def _mutex(wait: Wait) -> str:
    what = f"{wait.class_name} {wait.object:#x}"
    if wait.class_name in ("", "?"):
        what = f"a lock of {wait.call}" if wait.call else "a lock"
    if wait.path:
        what += f" ({wait.path})"
    return f"{what}, {_held(wait)}"


def _held(wait: Wait) -> str:
    if wait.is_free:
        return "free just now"
    if wait.holder is None:
        return "holder unknown"
    return f"held by {waiter_name(wait.holder)}"


def _queue(wait: Wait) -> str:
    method = wait.call.removeprefix("Thread::")
    parts = [f"{method} of {wait.class_name} {wait.object:#x}"]
    if wait.length is not None and wait.limit is not None:
        word = "full, " if wait.length >= wait.limit else ""
        parts.append(f"{word}{wait.length} of {wait.limit}")
    elif wait.length is not None:
        parts.append(_count(wait.length, "item") if wait.length else "empty")
    if wait.waiting is not None:
        parts.append(f"{wait.waiting} waiting")
    return ", ".join(parts)


def _condition(wait: Wait) -> str:
    return f"a signal to {wait.class_name} {wait.object:#x}"


def _thread(wait: Wait) -> str:
    if wait.holder is None:
        return "a thread to end, which is not in the list"
    return f"{waiter_name(wait.holder)} to end"


def _gvl(wait: Wait) -> str:
    return f"the GVL, {_held(wait)}"


def _io(wait: Wait) -> str:
    found = wait.descriptors
    if not found:
        return f"{wait.call or 'IO'}, descriptor unknown"
    return _descriptors(found, wait.call)


def _descriptors(found: Sequence[Descriptor], call: str) -> str:
    words = [_descriptor(one, call) for one in found[:_MOST_SHOWN]]
    if len(found) > _MOST_SHOWN:
        words.append(f"{len(found) - _MOST_SHOWN} more")
    return " or ".join(words)


def _descriptor(one: Descriptor, call: str) -> str:
    verb = _ACTIONS.get(one.action, one.action) or call or "IO"
    where = f"fd {one.number}" + (f" ({one.target})" if one.target else "")
    text = f"{verb} {where}" if verb.endswith((" of", " to")) else f"{verb} of {where}"
    if one.watched:
        text += f", watches {_numbers(one.watched)}"
    if one.other_ends:
        text += f"; its other end here: {_numbers(one.other_ends)}"
    if one.other_processes:
        text += f"; its other end: {_processes(one.other_processes)}"
    return text


_ACTIONS = {
    "epoll": "an event of",
    "accept": "a connection to",
    "connect": "the connection of",
}


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_SHOWN]))
    more = len(numbers) - _MOST_SHOWN
    return f"fd {shown}" + (f" and {more} more" if more > 0 else "")


def _open(wait: Wait) -> str:
    return f"open of {wait.path or 'a file'}"


def _file_lock(wait: Wait) -> str:
    (one,) = wait.descriptors
    text = f"a lock on fd {one.number}" + (f" ({one.target})" if one.target else "")
    holders = _processes(wait.processes)
    return f"{text}, held by {holders}" if holders else f"{text}, holder unknown"


def _child(wait: Wait) -> str:
    found = wait.children
    if len(found) == 1 and not wait.is_any_child:
        return f"{_process(found[0])} to end"
    return f"{'any' if wait.is_any_child else 'a'} child process to end: " + (
        _processes(found) if found else "none found"
    )


def _processes(processes: Sequence[OtherProcess]) -> str:
    names = ", ".join(map(_process, processes[:_MOST_SHOWN]))
    more = len(processes) - _MOST_SHOWN
    return names + (f", {more} more" if more > 0 else "")


def _process(one: OtherProcess) -> str:
    command = one.command
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]}..."
    return f"process {one.pid}" + (f" ({command})" if command else "")


def _sleep(wait: Wait) -> str:
    if wait.seconds is not None:
        return f"sleep of {wait.seconds:g} s"
    if wait.is_forever:
        return "a wake-up (sleep without end)"
    return "sleep" if wait.call == "Kernel#sleep" else f"sleep{_within(wait)}"


def _ractor(wait: Wait) -> str:
    return wait.call + ("" if wait.ractor is None else f" of ractor {wait.ractor}")


def _native_lock(wait: Wait) -> str:
    return f"native lock {wait.lock:#x}, {_held(wait)}{_within(wait)}"


def _system_call(wait: Wait) -> str:
    return f"system call {wait.system_call}{_within(wait)}"


def _within(wait: Wait) -> str:
    return f", in {wait.call}" if wait.call else ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


_WORDS: dict[WaitKind, Callable[[Wait], str]] = {
    WaitKind.MUTEX: _mutex,
    WaitKind.QUEUE: _queue,
    WaitKind.CONDITION: _condition,
    WaitKind.THREAD: _thread,
    WaitKind.GVL: _gvl,
    WaitKind.IO: _io,
    WaitKind.OPEN: _open,
    WaitKind.FILE_LOCK: _file_lock,
    WaitKind.CHILD: _child,
    WaitKind.SLEEP: _sleep,
    WaitKind.RACTOR: _ractor,
    WaitKind.EXIT: lambda wait: "the other threads to end, as the program exits",
    WaitKind.NATIVE_LOCK: _native_lock,
    WaitKind.SYSTEM_CALL: _system_call,
    WaitKind.UNKNOWN: lambda wait: f"unknown{_within(wait)}",
}
