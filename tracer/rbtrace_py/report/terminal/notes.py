"""What was seen but is not in a result, in sentences.

Every report ends with these lines, and one of them always says what was lost,
be it nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from rbtrace_py.aggregate.results import Result
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape, wrap

LOSSES = (
    "lost",
    "kernel_missed",
    "no_room",
    "too_deep",
    "unreadable",
    "no_stream",
    "no_block",
    "no_values",
    "silent",
    "hung_up",
)
"""Counters of what should be in a result and is not."""

_SENTENCES: dict[str, tuple[str, str]] = {
    "raised": (
        "1 span raised an exception (it is counted above)",
        "{} spans raised exceptions (they are counted above)",
    ),
    "thrown": (
        "1 span was left by a throw or break (it is counted above)",
        "{} spans were left by throws or breaks (they are counted above)",
    ),
    "running_at_attach": (
        "1 was running when tracing began",
        "{} were running when tracing began",
    ),
    "no_begin": ("1 end had no begin", "{} ends had no begin"),
    "open_begins": ("1 begin has no end yet", "{} begins have no end yet"),
    "running": ("1 call has not returned yet", "{} calls have not returned yet"),
    "not_returned": (
        "1 call was not seen to return; its time is until it was last seen",
        "{} calls were not seen to return; their times are until they were last seen",
    ),
    "other_paths": (
        "1 call is in (other): there was no room for its path",
        "{} calls are in (other): there was no room for their paths",
    ),
    "abandoned": (
        "1 call never returned: its fiber was dropped, or its stack overflowed",
        "{} calls never returned: their fibers were dropped, or a stack overflowed",
    ),
    "no_method": (
        "1 was of a method for which there was no room: see (no room)",
        "{} were of methods for which there was no room: see (no room)",
    ),
    "without_agent": (
        "1 process has no agent and is not here",
        "{} processes have no agent and are not here",
    ),
    "no_inner": (
        "1 process has Ractors, or began one: its collections and new objects were not"
        " counted since, as Ruby before 3.3 crashes with hooks on them",
        "{} processes have Ractors, or began some: their collections and new objects"
        " were not counted since, as Ruby before 3.3 crashes with hooks on them",
    ),
    "silent": (
        "what 1 process did is not all here: where a Ractor is collected, Ruby"
        " silences all hooks until they are put there again, which is done every 50 ms",
        "what {} processes did is not all here: where a Ractor is collected, Ruby"
        " silences all hooks until they are put there again, which is done every 50 ms",
    ),
    "hung_up": (
        "what 1 process did is not all here: its agent hung up, or did not answer",
        "what {} processes did is not all here: their agents hung up, or did not"
        " answer",
    ),
    "other_ractors": (
        "1 process has other Ractors: only its main Ractor is traced",
        "{} processes have other Ractors: only their main Ractors are traced",
    ),
    "late_processes": (
        "1 child was joined after it began; what it did before is not here",
        "{} children were joined after they began; what they did before is not here",
    ),
    "beyond_range": ("1 was beyond the range", "{} were beyond the range"),
    "negative": (
        "1 was negative: the clock went backwards",
        "{} were negative: the clock went backwards",
    ),
    "nil": ("1 was nil", "{} were nil"),
    "nan": ("1 was NaN", "{} were NaN"),
    "inf": ("1 was Infinity", "{} were Infinity"),
    "-inf": ("1 was -Infinity", "{} were -Infinity"),
    "filtered": ("1 did not match the filter", "{} did not match the filter"),
    "late_probes": (
        "1 probe appeared while tracing ran; what it did before is not here",
        "{} probes appeared while tracing ran; what they did before is not here",
    ),
    "not_traced": (
        "1 probe could not be traced and is not here",
        "{} probes could not be traced and are not here",
    ),
    "not_followed": (
        "the target has 1 child process, which was not traced: see --subprocesses",
        "the target has {} child processes, which were not traced: see --subprocesses",
    ),
    "no_operand": (
        "1 probe has no such operand and was not traced",
        "{} probes have no such operand and were not traced",
    ),
    "lost": (
        "1 event was lost: the buffer was full",
        "{} events were lost: the buffer was full",
    ),
    "kernel_missed": (
        "1 hit was missed by the kernel",
        "{} hits were missed by the kernel",
    ),
    "no_room": (
        "1 was lost: the kernel's map was full",
        "{} were lost: the kernel's map was full",
    ),
    "too_deep": ("1 was lost: nested too deeply", "{} were lost: nested too deeply"),
    "unreadable": (
        "1 was lost: an argument could not be read",
        "{} were lost: an argument could not be read",
    ),
    "no_stream": (
        "1 event was lost: there was no memory for its thread",
        "{} events were lost: there was no memory for their threads",
    ),
    "no_block": (
        "1 is in no distribution: there was no room (its time is in the sums)",
        "{} are in no distribution: there was no room (their times are in the sums)",
    ),
    "no_values": (
        "1 call is without the values of its expressions: the buffer was full",
        "{} calls are without the values of their expressions: the buffer was full",
    ),
}


def lost(counters: Mapping[str, int]) -> int:
    """How much is missing from the result that should be in it."""
    return sum(counters.get(name, 0) for name in LOSSES)


def note_lines(result: Result, style: Style) -> Iterator[str]:
    """A line for each counter that is not 0, losses last."""
    counters = Counter(result.counters)
    for group in result.groups:
        if group.distribution is not None:
            counters.update(group.distribution.apart)
    yield from counter_lines(counters, style)


def counter_lines(
    counters: Mapping[str, int], style: Style, says_none: bool = True
) -> Iterator[str]:
    """As ``note_lines``, of counters alone.

    says_none: "no losses" is said, too
    """
    for name, number in counters.items():
        if number > 0 and name not in LOSSES:
            yield from _note(sentence(name, number, style), style.dim, style)
    for name in LOSSES:
        if counters.get(name, 0) > 0:
            yield from _note(sentence(name, counters[name], style), style.red, style)
    if says_none and not lost(counters):
        yield from _note("no losses", style.dim, style)


def _note(text: str, paint: Callable[[str], str], style: Style) -> Iterator[str]:
    """A sentence, in as many lines as a narrow terminal makes of it."""
    for number, line in enumerate(wrap(text, style.width - 4)):
        yield f"  {'  ' if number else ''}{paint(line)}"


def sentence(name: str, number: int, style: Style) -> str:
    """``3 ends had no begin``."""
    if name not in _SENTENCES:
        return f"{escape(name.replace('_', ' '), style)}: {units.whole(number)}"
    singular, plural = _SENTENCES[name]
    return singular if number == 1 else plural.format(units.whole(number))
