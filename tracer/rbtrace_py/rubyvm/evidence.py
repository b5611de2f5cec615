"""The rule of evidence: which offset of each field is used.

Each source offers offsets of fields. Sources are ordered by trust: a saved layout,
DWARF of the same file, the table of the version, machine code. An offset that the
process's memory contradicts is dropped. The most trusted of the others is used. A less
trusted source that disagrees causes a note, never a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from rbtrace_py.rubyvm.checks import Contradiction
from rbtrace_py.rubyvm.layout import Field, Layout, Origin

_MOST_TRIED = 256
"""Maximum combinations of disputed offsets compared with memory per check."""
_MOST_RANKED = 1 << 14


@dataclass(frozen=True, slots=True)
class Offer:
    """The offsets of one source; ``fields`` are by their names in ``Offsets``."""

    origin: Origin
    fields: Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The chosen layout, its contradiction, and the sources that disagree with it."""

    layout: Layout
    contradiction: Contradiction | None
    disagreements: tuple[str, ...]


Build = Callable[[dict[str, tuple[Origin, Field]]], Layout]
Judge = Callable[[Layout], Contradiction | None]


def resolve(offers: Iterable[Offer], build: Build, judge: Judge) -> Verdict:
    """Choose among ``offers``, most trusted first, a layout that ``judge`` accepts."""
    candidates = _candidates(offers)
    choice = _Choice(candidates, dict.fromkeys(candidates, 0))
    wrong = judge(build(choice.picked))
    while wrong is not None:
        for other in choice.others(wrong.fields):
            found = judge(build(other.picked))
            if found is None or found.stage > wrong.stage:
                choice, wrong = other, found
                break
        else:
            break
    return Verdict(build(choice.picked), wrong, tuple(choice.disagreements()))


_Candidates = Mapping[str, Sequence[tuple[Origin, Field]]]


def _candidates(offers: Iterable[Offer]) -> _Candidates:
    """Return the different offsets of each field, the most trusted first."""
    found: dict[str, list[tuple[Origin, Field]]] = {}
    for offer in offers:
        for name, field in offer.fields.items():
            known = found.setdefault(name, [])
            if field.offset not in (other.offset for _, other in known):
                known.append((offer.origin, field))
    return found


@dataclass(frozen=True, slots=True)
class _Choice:
    """One candidate per field, chosen by its rank."""

    candidates: _Candidates
    ranks: Mapping[str, int]

    @property
    def picked(self) -> dict[str, tuple[Origin, Field]]:
        return {name: self.candidates[name][rank] for name, rank in self.ranks.items()}

    def others(self, fields: frozenset[str]) -> Iterator[_Choice]:
        """Yield other choices for these fields, by descending trust."""
        disputed = sorted(
            name for name in fields if len(self.candidates.get(name, ())) > 1
        )
        ranks = product(*(range(len(self.candidates[name])) for name in disputed))
        by_trust = sorted(islice(ranks, _MOST_RANKED), key=lambda one: (sum(one), one))
        for rank in by_trust[:_MOST_TRIED]:
            other = {**self.ranks, **dict(zip(disputed, rank, strict=True))}
            if other != self.ranks:
                yield _Choice(self.candidates, other)

    def disagreements(self) -> Iterator[str]:
        """Yield one line per source with another offset than the chosen one."""
        for name, offered in self.candidates.items():
            chosen, field = offered[self.ranks[name]]
            for origin, other in offered:
                if other is not field:
                    yield (
                        f"{field.member} is at {field.offset} by {chosen.value};"
                        f" {origin.value} has {other.offset}"
                    )
