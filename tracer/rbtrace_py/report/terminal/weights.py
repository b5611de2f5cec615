"""Text for weights of samples, and for a sampler's statistics."""

from __future__ import annotations

from collections.abc import Iterator

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.report import units
from rbtrace_py.report.style import PLAIN, Style

NONE_ON_CPU = "no thread was on CPU; --mode wall shows waiting threads"
"""Note for an empty report in mode cpu."""
_MANY_CHANGED = 0.1
"""Share of samples with unknown newest frames above which a note names a remedy."""


def amount(weight: int, unit: str, style: Style = PLAIN) -> str:
    """Return ``1,234 samples``, or a time, size, or number if the unit is one."""
    if unit == "ns":
        return units.duration(weight, style)
    if unit == "bytes":
        return units.size(weight)
    if unit == "weight":
        return units.format_count(weight)
    return units.plural(weight, counted(unit)[:-1])


def counted(unit: str) -> str:
    """Return ``samples``, or another unit; a unit from a file is untrusted text."""
    return unit if unit in ("calls", "events", "weight", "bytes") else "samples"


def percent(part: float, whole: float) -> str:
    """Return ``12.34``, as in a column of summaries."""
    return f"{100 * part / whole:.2f}" if whole else "0.00"


def statistics_lines(own: Statistics, style: Style = PLAIN) -> Iterator[str]:
    """Yield lines on the number of samples and their quality; losses come last."""
    yield f"  {_head(own)}"
    yield from quality_lines(own, style)
    if not has_losses(own):
        yield f"  {style.dim('no losses')}"


def quality_lines(own: Statistics, style: Style = PLAIN) -> Iterator[str]:
    """Yield lines on samples that are incomplete, left out, late, or failed."""
    if own.trimmed:
        text = units.plural(own.trimmed, "sample")
        text += f" ({units.share(own.trimmed, own.samples)} %)"
        text += ": newest frames changed while read"
        if own.trimmed > _MANY_CHANGED * own.samples and own.engine != "bpf":
            text += "; --pause reads them all"
        yield f"  {style.dim(text)}"
    for number, what in (
        (own.truncated, "oldest frames dropped (too deep)"),
        (own.unresolved - own.ended, "code freed before it was named (unresolved)"),
        (own.ended, "process ended before all was named (unresolved)"),
    ):
        if number:
            text = f"{units.plural(number, 'sample')}: {what}"
            yield f"  {style.dim(text)}"
    if own.idle:
        yield f"  {style.dim(idle_text(own.idle, own.unit))}"
    if own.other:
        text = f"{amount(own.other, own.unit, style)} with rare stacks are in (other)"
        yield f"  {style.dim(text)}"
    if own.late:
        part = units.share(own.late, max(own.rounds, own.late))
        text = units.plural(own.late, "late sampling pass", "late sampling passes")
        text += f" ({part} %)"
        yield f"  {style.yellow(text)}"
    if own.failed and own.counted == "calls":
        text = units.plural(own.failed, "event was lost", "events were lost")
        yield f"  {style.red(text)}"
    elif own.failed:
        tried = own.samples + own.failed
        part = units.share(own.failed, tried)
        text = f"{units.plural(own.failed, 'failed sample')} ({part} %)"
        yield f"  {style.red(text)}"
    for gap in own.gaps():
        yield f"  {style.red(gap)}"


def has_losses(own: Statistics) -> bool:
    """Return whether any samples are lost, cut, or late."""
    return bool(
        own.failed
        or own.late
        or own.trimmed
        or own.truncated
        or own.unresolved
        or own.has_gaps
        or own.incomplete
        or own.deleted
    )


def amount_alone(weight: int, unit: str) -> str:
    """Return ``1,234``, or a time."""
    return units.duration(weight, PLAIN) if unit == "ns" else units.format_count(weight)


def idle_text(weight: int, unit: str) -> str:
    """Return ``1,234 idle samples are left out; --idle shows them``."""
    if unit == "ns":
        text = f"{units.duration(weight, PLAIN)} of idle threads is"
    else:
        text = units.plural(weight, "idle sample is", "idle samples are")
    what = "it" if unit == "ns" or weight == 1 else "them"
    return f"{text} left out; --idle shows {what}"


def _head(own: Statistics) -> str:
    text = amount(own.samples, own.counted)
    if own.duration_ns:
        text += f" in {units.span(own.duration_ns)}"
    if own.achieved_rate and own.rate:
        text += f", {own.achieved_rate:.1f} of {own.rate:g} sampling passes per second"
    if own.engine == "bpf":
        text += ", by BPF"
    return text


def progress(own: Statistics) -> str:
    """Return ``1,234 samples, 99/s, 2 late, 1 failed``, for the status line."""
    parts = [amount(own.samples, "samples")]
    if own.rate:
        parts.append(f"{own.achieved_rate:.0f}/s")
    if own.late:
        parts.append(f"{units.format_count(own.late)} late")
    if own.failed:
        parts.append(f"{units.format_count(own.failed)} failed")
    return ", ".join(parts)
