"""Readable samples: a paragraph each, the innermost frame first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.model.stacks import Frame, Sample, SampleFlags
from rbtrace_py.report.exchange.rows import clean, frame_text, thread_text
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.terminal.weights import amount, statistics_lines

_SECOND = 1_000_000_000


def readable_lines(profile: Profile, options: ReportOptions) -> Iterator[str]:
    """Yield samples in the order they were taken, in UTC, then the statistics."""
    if options.title:
        yield options.style.bold(clean(options.title))
    of_calls = profile.counts.statistics.counted == "calls"
    for sample in profile.stream():
        yield options.style.bold(_head(sample, profile.unit, of_calls))
        if sample.flags & SampleFlags.TRIMMED:
            yield "    (newest frames changed while read)"
        for frame in reversed(sample.stack.frames):
            yield f"    {_frame(frame)}"
        if sample.flags & SampleFlags.TRUNCATED:
            yield "    (oldest frames missing)"
        yield ""
    yield from statistics_lines(profile.counts.statistics, options.style)


def _head(sample: Sample, unit: str, of_calls: bool) -> str:
    """Return the heading of a sample; ``of_calls`` replaces its state by "calls"."""
    words = [f"pid {sample.thread.pid}", thread_text(sample.thread)]
    words.append("calls" if of_calls else sample.state.name.lower())
    if sample.time_ns > 0:
        words.insert(0, _when(sample.time_ns))
    if sample.weight != 1 or unit != "samples":
        words.append(f"({amount(sample.weight, unit)})")
    return " ".join(words)


def _when(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, _SECOND)
    try:
        when = datetime.fromtimestamp(seconds, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"@{time_ns}"
    return f"{when:%Y-%m-%d %H:%M:%S}.{rest // 1000:06d}"


def _frame(frame: Frame) -> str:
    return frame_text(frame, lines=True)
