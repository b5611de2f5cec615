"""Selection of probes by a user's words: names, globs, spans, and pairs."""

from __future__ import annotations

import difflib
import fnmatch
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rbtrace_py.errors import NoSuchProbe, UsageError
from rbtrace_py.model.probes import OperandRole, Probe, ProbeRole

AGENT_PROVIDER = "rbtrace"
"""Provider of the agent's own static probes."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "latency": ("method", "gc"),
    "count": ("method", "object", "raise", "gc"),
    "trace": ("raise",),
}
"""Words that a command takes besides probes."""

INSTEAD: Mapping[str, str] = {
    "method": "Show every call of a method with `rbtrace-py calls PID`",
    "object": "Count new objects with `rbtrace-py count PID object --by class`",
    "gc": "Time collections with `rbtrace-py latency PID gc`",
}
"""Hint for such a word if it is not a probe and the command does not support it."""

_METHOD = re.compile(r"(?:[A-Z]\w*::)*[A-Z]\w*[#.]")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two names of probes whose hits on one thread begin and end an operation."""

    begin: str
    end: str
    series: str


BUILT_IN_PAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "gc": (
        ("ruby:gc__mark__begin", "ruby:gc__mark__end"),
        ("ruby:gc__sweep__begin", "ruby:gc__sweep__end"),
    ),
    "gc-pause": (("ruby:gc__enter", "ruby:gc__exit"),),
    "gc-mark": (("ruby:gc__mark__begin", "ruby:gc__mark__end"),),
    "gc-sweep": (("ruby:gc__sweep__begin", "ruby:gc__sweep__end"),),
    "require": (("ruby:require__entry", "ruby:require__return"),),
    "load": (("ruby:load__entry", "ruby:load__return"),),
    # Despite their names, they fire at the VM's lock, not at the GVL (vm_sync.c, 4.1).
    "vm-lock": (("ruby:gvl__acquire", "ruby:gvl__release"),),
    "cmethod": (("ruby:cmethod__entry", "ruby:cmethod__return"),),
}
"""Words for pairs of Ruby's own probes (CRuby's probes.d)."""


def is_glob(word: str) -> bool:
    # `Shop::Cart#[]` is a method, not a glob.
    return any(c in word.removesuffix("=").removesuffix("[]") for c in "*?[")


def matches(word: str, probe: Probe) -> bool:
    """Return whether a word matches a probe.

    Args:
        word: A name, ``provider:name``, a method, or a glob. The name of a span, or of
            the Ruby method that it measures, matches its end probe. A bare name matches
            any provider.
        probe: The probe.
    """
    method = probe.measured_method
    if method is not None and (
        word == method or (_METHOD.match(word) and fnmatch.fnmatchcase(method, word))
    ):
        return True
    provider, colon, name = word.rpartition(":")
    if colon and provider and not fnmatch.fnmatchcase(probe.provider, provider):
        return False
    if fnmatch.fnmatchcase(probe.name, name):
        return True
    span = probe.span_name
    return (
        span is not None
        and probe.role is ProbeRole.SPAN_END
        and fnmatch.fnmatchcase(span, name)
    )


def pick(word: str, probes: Iterable[Probe]) -> list[Probe]:
    """Return the probes that a word matches, if any.

    The name of a probe takes precedence over a span of the same name. A word without a
    provider never matches the agent's own probes, which would not fire for `object`.
    """
    found = [probe for probe in probes if matches(word, probe)]
    provider, _, name = word.rpartition(":")
    if not provider and not is_glob(word):
        found = [probe for probe in found if probe.provider != AGENT_PROVIDER]
    exact = [probe for probe in found if fnmatch.fnmatchcase(probe.name, name)]
    return found if is_glob(word) or not exact else exact


def duration_operand(probe: Probe) -> int | None:
    """Return the index of the operand with a span's duration."""
    return _role(probe, OperandRole.DURATION)


def outcome_operand(probe: Probe) -> int | None:
    return _role(probe, OperandRole.OUTCOME)


def _role(probe: Probe, role: OperandRole) -> int | None:
    for index, operand in enumerate(probe.operands):
        if operand.role is role:
            return index
    return None


def series_name(probe: Probe) -> str:
    """Return a probe's name in results: for a span's end, the span or its method."""
    if probe.measured_method is not None:
        return probe.measured_method
    if probe.role is ProbeRole.SPAN_END and probe.span_name:
        return f"{probe.provider}:{probe.span_name}"
    return probe.full_name


def unknown_probe(word: str, probes: Sequence[Probe], command: str = "") -> NoSuchProbe:
    """Return the error for a word that does not match any probe, with similar names."""
    # Users do not trace the agent's own probes, which are silent by themselves.
    probes = [probe for probe in probes if probe.provider != AGENT_PROVIDER]
    names = sorted({probe.full_name for probe in probes})
    names += sorted({series_name(probe) for probe in probes} - set(names))
    bare = {name.rpartition(":")[2]: name for name in reversed(names)}
    ours = difflib.get_close_matches(word, WORDS.get(command, ()), 1, 0.7)
    providers = {probe.provider for probe in probes}
    whole = difflib.get_close_matches(word.rstrip("*"), providers, 1, 0.8)
    near = [*ours, *(f"{provider}:*" for provider in whole)]
    near += difflib.get_close_matches(word, names, 3, 0.6)
    near += [bare[n] for n in difflib.get_close_matches(word, list(bare), 3, 0.6)]
    near = [name for name in dict.fromkeys(near) if name != word][:3]
    elsewhere = difflib.get_close_matches(word.removeprefix(":"), INSTEAD, 1, 0.8)
    if elsewhere and not ours:
        hint = INSTEAD[elsewhere[0]]
    elif _METHOD.match(word):
        hint = _method_hint(word, command)
    elif near:
        hint = f"Did you mean {', '.join(near)}?"
    elif names:
        hint = "List all probes with `rbtrace-py probes PID`"
    else:
        hint = "The process has no USDT probes: see `rbtrace-py doctor PID`"
    return NoSuchProbe(f"no probe matches {word}", hint, word)


def _method_hint(word: str, command: str) -> str:
    """Return the hint for a word that is a method, not a probe."""
    selected = f"-m {shlex.quote(word)}"
    if command in ("count", "latency"):
        return f"Select methods with -m: `rbtrace-py {command} PID method {selected}`"
    return f"Show the calls of a method with `rbtrace-py calls PID {selected}`"


def parse_pair(word: str) -> Pair | None:
    """Parse ``A..B``; return None for other words.

    Raises:
        UsageError: An end is missing or is a glob.
    """
    if ".." not in word:
        return None
    begin, _, end = word.partition("..")
    if not begin or not end or ".." in end:
        raise UsageError(
            f"{word!r} is not a pair of probes", "Write a pair as BEGIN..END"
        )
    if is_glob(begin) or is_glob(end):
        raise UsageError(f"{word!r}: a pair consists of two names, not globs")
    return Pair(begin, end, word)


def built_in(word: str, probes: Sequence[Probe]) -> tuple[Pair, ...] | None:
    """Return the pairs of a built-in word, unless the user has a probe of that name.

    With a leading colon, as in ``:gc``, it is always the built-in word.
    """
    name = word.removeprefix(":")
    pairs = BUILT_IN_PAIRS.get(name)
    if pairs is None or (not word.startswith(":") and pick(word, probes)):
        return None
    return tuple(Pair(begin, end, name) for begin, end in pairs)
