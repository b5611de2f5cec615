"""A query for probes: words, options, a filter, and the selected probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rbtrace_py.bpf.slots import SPECIAL
from rbtrace_py.errors import UsageError
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.probes import select
from rbtrace_py.session.probes.probe_filter import ProbeFilter
from rbtrace_py.session.targets.confirmation import Confirm, accept_none


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options that the event commands share.

    Attributes:
        by: Operand (or ``pid``, ``tid``) to group by.
        filter: Text of the filter.
        max_keys: Maximum number of groups.
        wait: Wait for probes that are not defined yet.
        wait_seconds: Time limit of this wait in seconds; None: no limit.
        confirm: Called with each action that can harm the target; the action is only
            done if it returns True.
        string_size: Bytes that ``trace`` reads of a string.
        ring_size: Bytes of ``trace``'s ring buffer, a power of two.
    """

    by: str | None = None
    filter: str | None = None
    max_keys: int = 1000
    wait: bool = False
    wait_seconds: float | None = None
    confirm: Confirm = accept_none
    string_size: int = 128
    ring_size: int = 1 << 22


class NoOperand(UsageError):
    """A probe lacks a requested operand."""


class ProbeQuery:
    """Words of a command, and its options. Base class of sessions.

    Attributes:
        lacking: Names of missing operands, by the probe's full name.
    """

    command = ""

    def __init__(
        self, words: Sequence[str], options: ProbeOptions | None = None
    ) -> None:
        if not words:
            raise UsageError(
                "no probe given", "List the probes with `rbtrace-py probes PID`"
            )
        self.options = options or ProbeOptions()
        self.words = tuple(dict.fromkeys(words))
        self.filter = ProbeFilter(self.options.filter)
        self.lacking: dict[str, list[str]] = {}

    def check(self, probes: Sequence[Probe]) -> None:
        """Raise NoSuchProbe if a word does not match any of ``probes``."""
        for word in self.words:
            if not select.pick(word, probes):
                raise select.unknown_probe(word, probes, self.command)

    def named(self, probes: Sequence[Probe]) -> list[Probe]:
        """Return the probes of the words that are not globs."""
        words = [word for word in self.words if not select.is_glob(word)]
        return [p for word in words for p in select.pick(word, probes)]

    def pick(self, word: str, probes: Sequence[Probe]) -> list[Probe]:
        """Return the probes of a word that have the requested operands."""
        return self.fitting(select.pick(word, probes))

    def fitting(self, probes: Sequence[Probe]) -> list[Probe]:
        """Return the probes that have the requested operands."""
        return [probe for probe in probes if not self.missing_operands(probe)]

    def check_operands(self, word: str, found: Sequence[Probe]) -> None:
        """Check the operands of a word's probes.

        A glob skips probes that lack one, and records them in ``lacking``.

        Raises:
            NoOperand: All probes lack one, or one does and the word is not a glob.
        """
        lacking = {p: self.missing_operands(p) for p in found}
        lacking = {p: names for p, names in lacking.items() if names}
        if lacking and (len(lacking) == len(found) or not select.is_glob(word)):
            raise _no_operand(word, lacking)
        self.lacking.update((p.full_name, names) for p, names in lacking.items())

    def picked(self, probes: Sequence[Probe]) -> list[Probe]:
        """Return the probes that the words name, without duplicates."""
        return list(dict.fromkeys(p for w in self.words for p in self.pick(w, probes)))

    def check_words(self, probes: Sequence[Probe]) -> None:
        """Call ``check_operands`` for all words."""
        for word in self.words:
            self.check_operands(word, select.pick(word, probes))

    def missing_operands(self, probe: Probe) -> list[str]:
        names = [self.options.by] if self.options.by else []
        names += self.filter.operands
        return [n for n in names if probe.operand(n) is None and n not in SPECIAL]


def _no_operand(word: str, lacking: Mapping[Probe, Sequence[str]]) -> NoOperand:
    probe, names = next(iter(lacking.items()))
    everywhere = [n for n in names if all(n in lack for lack in lacking.values())]
    if len(lacking) > 1 and everywhere and select.is_glob(word):
        return NoOperand(
            f"none of the {len(lacking)} probes {word} has an argument {everywhere[0]}",
            "List their arguments with `rbtrace-py probes PID`",
        )
    return NoOperand(
        f"{probe.full_name} has no argument {names[0]}",
        f"Use its arguments: {probe.signature}",
    )


def unique(probes: Mapping[int, Sequence[Probe]]) -> list[Probe]:
    """Return the probes of all processes; probes of a shared file appear once."""
    found: dict[tuple[object, ...], Probe] = {}
    for group in probes.values():
        for probe in group:
            key = (probe.binary.key, probe.full_name, probe.sites[0].offset)
            found.setdefault(key, probe)
    return list(found.values())
