"""The sources of one Ruby's layout: a saved file, DWARF, the table, machine code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from time import monotonic

from rbtrace_py.errors import UsageError
from rbtrace_py.linux.memory import Memory
from rbtrace_py.rubyvm.checks import Contradiction, Roots, contradiction
from rbtrace_py.rubyvm.detect import Ruby, Version
from rbtrace_py.rubyvm.dwarf.fields import FromDwarf, fields_from_dwarf
from rbtrace_py.rubyvm.evidence import Judge, Offer, Verdict, resolve
from rbtrace_py.rubyvm.layout import Field, Layout, Offsets, Origin, Table
from rbtrace_py.rubyvm.layouts import VERSIONS, layout_from, table_for
from rbtrace_py.rubyvm.mining import mine
from rbtrace_py.rubyvm.saved import SavedLayout

_MOST_SECONDS = 10.0
"""Maximum seconds for comparing layouts with memory, which a malicious target can make
slow."""


_NOT_WALKED = frozenset(one.name for one in fields(Offsets) if one.default is None)
"""Fields that are not needed to read threads and stacks."""


class LayoutSources:
    """The layout sources of the Ruby ``version`` in the file of ``ruby``.

    Attributes:
        table: Table of its version, or of the nearest one.
        notes: Notes for the user, one per line.
        evidence: Files that were read, one per line.
        agreed: Fields that machine code confirms, once ``resolve`` was called.

    Raises:
        UnknownRuby: There is no table near the version.
    """

    def __init__(self, ruby: Ruby, version: Version) -> None:
        self._ruby = ruby
        self._version = version
        self._offers: list[Offer] = []
        self._dwarf: list[FromDwarf | None] = []
        self.notes: list[str] = []
        self.evidence: list[str] = []
        self.agreed: frozenset[str] = frozenset()
        self.table = self._find_table()

    @property
    def is_newer(self) -> bool:
        """True if its minor version is newer than all known ones."""
        return self._version.minor > VERSIONS[-1]

    def _find_table(self) -> Table:
        text = self._version.text
        if self.is_newer:
            text = "{}.{}.99".format(*VERSIONS[-1])
        table = table_for(text)
        if self.is_newer or int(text.split(".")[2]) > table.newest:
            known = "{}.{}.{}".format(*table.version, table.newest)
            self.notes.append(
                f"Ruby {self._version.text} is newer than {known}, the newest"
                " verified version; its memory matches that layout"
            )
        return table

    def add_saved(self, saved: SavedLayout) -> None:
        """Trust a saved layout most; raises UsageError if it is for another version."""
        if saved.version != self._version.text:
            raise UsageError(
                f"the saved layout is for Ruby {saved.version}, but"
                f" {self._ruby.path} is Ruby {self._version.text}",
                "Save the layout of the same release, or use --ruby-version",
            )
        if saved.build_id != self._ruby.build_id:
            self.notes.append(
                f"the saved layout is from another build of Ruby {saved.version}"
            )
        self._offers.append(Offer(Origin.FILE, saved.fields(self.table)))

    def add_dwarf(self, path: bytes, roots: Sequence[str]) -> bool:
        """Add offsets from the DWARF of the file or its debug file, if it exists.

        Args:
            path: Path of the file in the target's root.
            roots: Roots to search for separate debug files.
        """
        elf, fd = self._ruby.elf, self._ruby.file.fd
        where = [os.fsencode(root) for root in roots]
        self._dwarf = [
            fields_from_dwarf(elf, fd, path, where, table) for table in self._tables()
        ]
        found = [one for one in self._dwarf if one is not None]
        self.evidence += [f"DWARF: {one.path}" for one in found[:1]]
        return bool(found)

    def _tables(self) -> Iterator[Table]:
        """Yield the table, then the tables of later revisions of the same branch."""
        table: Table | None = self.table
        while table is not None:
            yield table
            table = table.later

    def resolve(self, memory: Memory, roots: Roots) -> Verdict:
        """Choose a layout from the sources, the table, and machine code, by memory.

        A development branch has several tables. The first table that memory does not
        contradict is used, or else the table with the most passed checks.
        """
        best: tuple[tuple[bool, int], Table, Verdict, frozenset[str]] | None = None
        for table, dwarf in zip_longest(list(self._tables()), self._dwarf):
            self.table, offers = table, self._offers
            if dwarf is not None:
                offers = [*offers, Offer(Origin.DWARF, dwarf.fields)]
                self.table = _without(table, dwarf.absent)
            verdict, agreed = self._resolve_table(offers, memory, roots)
            wrong = verdict.contradiction
            fits = wrong is None or wrong.is_doubt
            passed = fits, 0 if wrong is None else wrong.stage
            if best is None or passed > best[0]:
                best = passed, self.table, verdict, agreed
            if fits:
                break
        assert best is not None
        _, self.table, verdict, self.agreed = best
        if self.table.development and verdict.contradiction is None:
            version = "{}.{}".format(*self.table.version)
            self.notes.append(
                f"the layout of Ruby {version} is of its development branch of"
                f" {self.table.development}; this program's memory matches it"
            )
        self.evidence += verdict.disagreements
        return verdict

    def _resolve_table(
        self, offers: list[Offer], memory: Memory, roots: Roots
    ) -> tuple[Verdict, frozenset[str]]:
        """Return the layout by one table, and the fields that machine code confirms."""
        offers = [*offers, Offer(Origin.TABLE, self.table.fields)]
        mined = mine(self._ruby, self._resolve(offers, _nothing).layout.offsets)
        members = self.table.fields
        offers.append(
            Offer(
                Origin.MINED,
                {
                    name: Field(offset, members[name].member)
                    for name, offset in mined.offered.items()
                },
            )
        )
        verdict = self._resolve(offers, _judge(memory, roots))
        origins = verdict.layout.origins.items()
        chosen = {name for name, origin in origins if origin is Origin.MINED}
        return verdict, mined.agreed | chosen

    def _resolve(self, offers: Sequence[Offer], judge: Judge) -> Verdict:
        def build(picked: dict[str, tuple[Origin, Field]]) -> Layout:
            return layout_from(self.table, self._version.text, picked)

        return resolve(offers, build, judge)


def _without(table: Table, absent: frozenset[str]) -> Table:
    """Return a table without the members that are missing in DWARF.

    Members that a walk needs stay: the checks against memory decide on those.
    """
    gone = absent & _NOT_WALKED
    fields = {name: one for name, one in table.fields.items() if name not in gone}
    return replace(table, fields=fields)


def _nothing(_: Layout) -> Contradiction | None:
    """A judge that never contradicts."""
    return None


def _judge(memory: Memory, roots: Roots) -> Judge:
    """Return a judge by memory; after a time limit it repeats its last verdict."""
    until = monotonic() + _MOST_SECONDS
    last: Contradiction | None = None
    is_new = True

    def judge(layout: Layout) -> Contradiction | None:
        nonlocal last, is_new
        if is_new or monotonic() < until:
            last, is_new = contradiction(memory, layout, roots), False
        return last

    return judge
