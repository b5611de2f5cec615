"""The choice of processes by ``--ps REGEX``: those that run Ruby, if some do.

Shells, editors and a tail of a log have the words in their command lines, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.errors import NotPermitted, RbtraceError
from rbtrace_py.linux.process import Process, parse_stat
from rbtrace_py.linux.processes import Candidate, descendants, find_by_cmdline
from rbtrace_py.rubyvm.detect import find_ruby


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidates by PID.

    are_ruby: each runs Ruby; else none does, as far as we may look
    passed_over: how many matched besides
    """

    candidates: Sequence[Candidate]
    are_ruby: bool
    passed_over: int


def choices(regex: str) -> Choice:
    """The processes that match, or of these those that run Ruby.

    Where none does, what only started another that matches (sudo, sh) is passed
    over. Raises UsageError if the regex does not compile.
    """
    matching = find_by_cmdline(regex)
    rubies = [one for one in matching if runs_ruby(one.pid)]
    found = rubies or _without_starters(matching)
    return Choice(found, bool(rubies), len(matching) - len(found))


def families(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the candidates with children: descendants of another one go with it.

    Workers of one program that runs Ruby, which does not match itself, are meant
    together.
    """
    pids = {one.pid for one in candidates}
    below = {pid for one in pids for pid in descendants(one)}
    heads = [one for one in candidates if one.pid not in below]
    parents = {_parent(one.pid) for one in heads}
    if len(heads) > 1 and len(parents) == 1 and runs_ruby(parents.pop()):
        return [heads]
    return [[head] for head in heads]


def _parent(pid: int) -> int:
    """0 if it is not there any more."""
    try:
        with Process(pid) as process:
            return parse_stat(process.read("stat")).parent
    except RbtraceError:
        return 0


def runs_ruby(pid: int) -> bool:
    """Is CRuby in it? False also where we may not look."""
    try:
        return _has_ruby(pid)
    except NotPermitted:
        return False


def check_permitted(candidates: Sequence[Candidate]) -> None:
    """Raise NotPermitted if we may not see whether one of them runs Ruby."""
    for one in candidates:
        _has_ruby(one.pid)


def _has_ruby(pid: int) -> bool:
    try:
        with Process(pid) as process, find_ruby(process):
            return True
    except NotPermitted:
        raise
    except (RbtraceError, OSError):
        return False


def _without_starters(candidates: Sequence[Candidate]) -> list[Candidate]:
    pids = {one.pid for one in candidates}
    return [one for one in candidates if not pids.intersection(descendants(one.pid))]
