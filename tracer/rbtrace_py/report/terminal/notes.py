"""Notes below a result: observed events that are not in it.

Every report ends with these lines. One of them always reports the losses, even if there
are none; the last one reports what tracing cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from rbtrace_py.aggregate.results import LOSSES, SAMPLE_LOSSES, UNWRITTEN, Result
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.report import units
from rbtrace_py.report.style import Style
from rbtrace_py.report.text import escape, wrap

_SENTENCES: dict[str, tuple[str, str]] = {
    "raised": (
        "1 span raised an exception (included above)",
        "{} spans raised exceptions (included above)",
    ),
    "thrown": (
        "1 span was left by throw or break (included above)",
        "{} spans were left by throw or break (included above)",
    ),
    "running_at_attach": (
        "1 was running when tracing began and has returned",
        "{} were running when tracing began and have returned",
    ),
    "no_begin": ("1 end without a begin", "{} ends without a begin"),
    "open_begins": ("1 begin without an end so far", "{} begins without an end so far"),
    "running": ("1 call has not returned yet", "{} calls have not returned yet"),
    "not_returned": (
        "1 call was not seen to return; its time runs until it was last seen",
        "{} calls were not seen to return; their times run until they were last seen",
    ),
    "other_paths": (
        "1 call is in (other): no space for its path",
        "{} calls are in (other): no space for their paths",
    ),
    "abandoned": (
        "1 call never returned: its fiber was dropped, or its stack overflowed",
        "{} calls never returned: their fibers were dropped, or a stack overflowed",
    ),
    "no_method": (
        "1 call is in (no room): its method did not fit into the table",
        "{} calls are in (no room): their methods did not fit into the table",
    ),
    "without_agent": (
        "1 process has no agent and was not traced",
        "{} processes have no agent and were not traced",
    ),
    "no_inner": (
        "1 process uses Ractors: its collections and new objects were not counted"
        " after the first Ractor, since hooks on them crash Ruby before 3.3",
        "{} processes use Ractors: their collections and new objects were not"
        " counted after the first Ractor, since hooks on them crash Ruby before"
        " 3.3",
    ),
    "silent": (
        "events of 1 process are missing: when a Ractor is garbage-collected,"
        " Ruby disables all hooks until they are set again, which happens every"
        " 50 ms; and ZJIT of Ruby 4.1 creates most objects without an event",
        "events of {} processes are missing: when a Ractor is garbage-collected,"
        " Ruby disables all hooks until they are set again, which happens every"
        " 50 ms; and ZJIT of Ruby 4.1 creates most objects without an event",
    ),
    "left_out": (
        "selected methods of 1 process are missing: they are more than 1,000, or"
        " define_method made them",
        "selected methods of {} processes are missing: they are more than 1,000, or"
        " define_method made them",
    ),
    "hung_up": (
        "events of 1 process are missing: its agent hung up or did not answer",
        "events of {} processes are missing: their agents hung up or did not answer",
    ),
    "deleted": (
        "1 call deleted because the disk was full",
        "{} calls deleted because the disk was full",
    ),
    "other_ractors": (
        "1 process has other Ractors: only its main Ractor is traced",
        "{} processes have other Ractors: only their main Ractors are traced",
    ),
    "late_processes": (
        "1 child was traced late; its first events are missing",
        "{} children were traced late; their first events are missing",
    ),
    "beyond_range": ("1 value was out of range", "{} values were out of range"),
    "negative": (
        "1 value was negative: the clock went backwards",
        "{} values were negative: the clock went backwards",
    ),
    "nil": ("1 value was nil", "{} values were nil"),
    "nan": ("1 was NaN", "{} were NaN"),
    "inf": ("1 value was Infinity", "{} values were Infinity"),
    "-inf": ("1 value was -Infinity", "{} values were -Infinity"),
    "filtered": (
        "1 event did not match the filter",
        "{} events did not match the filter",
    ),
    "late_probes": (
        "1 probe appeared during tracing; its earlier events are missing",
        "{} probes appeared during tracing; their earlier events are missing",
    ),
    "not_traced": (
        "1 probe could not be traced",
        "{} probes could not be traced",
    ),
    "not_followed": (
        "the target has 1 child process, which was not traced: see --subprocesses",
        "the target has {} child processes, which were not traced: see --subprocesses",
    ),
    "no_operand": (
        "1 probe has no such argument and was not traced",
        "{} probes have no such argument and were not traced",
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
        "1 event was lost: the kernel's map was full",
        "{} events were lost: the kernel's map was full",
    ),
    "too_deep": (
        "1 event was lost: nested too deeply",
        "{} events were lost: nested too deeply",
    ),
    "unreadable": (
        "1 event was lost: an argument could not be read",
        "{} events were lost: an argument could not be read",
    ),
    "no_stream": (
        "1 event was lost: no memory for its thread",
        "{} events were lost: no memory for their threads",
    ),
    "no_block": (
        "1 is missing in the distribution: no space (its time is in the sums)",
        "{} are missing in the distribution: no space (their times are in the sums)",
    ),
    "lost_samples": (
        "1 sample of a stack was lost",
        "{} samples of stacks were lost",
    ),
    "incomplete_spans": (
        "1 slow span lacks its first samples: more came than can be set aside",
        "{} slow spans lack their first samples: more came than can be set aside",
    ),
    "cut_samples": (
        "1 sample lacks its oldest frames: its stack was too deep",
        "{} samples lack their oldest frames: their stacks were too deep",
    ),
    "no_values": (
        "the expressions of 1 call have no values: the buffer was full",
        "the expressions of {} calls have no values: the buffer was full",
    ),
}


def note_lines(result: Result, style: Style) -> Iterator[str]:
    """Yield one line per counter that is not 0, losses last."""
    counters = Counter(result.counters)
    for group in result.groups:
        if group.distribution is not None:
            counters.update(group.distribution.apart)
    yield from counter_lines(counters, style)
    yield from cost_lines(result.cost, style)


def cost_lines(cost: HitCost | None, style: Style) -> Iterator[str]:
    """Yield the cost of tracing for the processes, if it is known and not 0."""
    if cost is not None and cost.hits:
        percent = 100 * cost.share
        share = f"{percent:.1f}" if percent >= 0.05 else "less than 0.1"
        each = f"{cost.ns_each / 1000:.1f} µs"
        hits = units.plural(cost.hits, "hit")
        text = f"cost: {hits} of probes at {each} each, {share} % of a CPU"
        yield from _note(text, style.dim, style)


def counter_lines(
    counters: Mapping[str, int], style: Style, says_none: bool = True
) -> Iterator[str]:
    """Yield the lines of counters.

    Args:
        counters: Counts by name.
        style: Style of the lines.
        says_none: True to print "no losses" as well.
    """
    losses = (*LOSSES, *SAMPLE_LOSSES)
    for name, number in counters.items():
        if number > 0 and name not in (*losses, *UNWRITTEN):
            yield from _note(sentence(name, number, style), style.dim, style)
    found = [name for name in losses if counters.get(name, 0) > 0]
    for name in found:
        yield from _note(sentence(name, counters[name], style), style.red, style)
    if says_none and not found:
        yield from _note("no losses", style.dim, style)


def _note(text: str, paint: Callable[[str], str], style: Style) -> Iterator[str]:
    """Yield a sentence, wrapped to the width of the terminal."""
    for number, line in enumerate(wrap(text, style.width - 4)):
        yield f"  {'  ' if number else ''}{paint(line)}"


def sentence(name: str, number: int, style: Style) -> str:
    """Return a sentence such as ``3 ends had no begin``."""
    if name not in _SENTENCES:
        return f"{escape(name.replace('_', ' '), style)}: {units.format_count(number)}"
    singular, plural = _SENTENCES[name]
    return singular if number == 1 else plural.format(units.format_count(number))
