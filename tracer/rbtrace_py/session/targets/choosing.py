"""Selection of processes by ``--ps REGEX``: Ruby processes, if any match.

The command lines of shells, editors, and a log's tail match such words, too.
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
    """The candidates of a selection.

    Attributes:
        candidates: The processes.
        are_ruby: True if each runs Ruby; False if none does, as far as we can read.
        passed_over: Number of further matches.
    """

    candidates: Sequence[Candidate]
    are_ruby: bool
    passed_over: int


def choices(regex: str) -> Choice:
    """Return the matching processes, or only the Ruby processes among them.

    If none runs Ruby, processes that only started another match (sudo, sh) are skipped.

    Args:
        regex: Regular expression for the command line.

    Raises:
        UsageError: The regex is invalid.
    """
    matching = find_by_cmdline(regex)
    rubies = [one for one in matching if runs_ruby(one.pid)]
    found = rubies or _without_starters(matching)
    return Choice(found, bool(rubies), len(matching) - len(found))


def families(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Group candidates: the descendants of a candidate belong to it.

    If all remaining candidates are children of one Ruby process that does not match
    itself, such as workers, they form one group.
    """
    pids = {one.pid for one in candidates}
    below = {pid for one in pids for pid in descendants(one)}
    heads = [one for one in candidates if one.pid not in below]
    parents = {_parent(one.pid) for one in heads}
    if len(heads) > 1 and len(parents) == 1 and runs_ruby(parents.pop()):
        return [heads]
    return [[head] for head in heads]


def _parent(pid: int) -> int:
    """Return the parent's PID, or 0 if the process has ended."""
    try:
        with Process(pid) as process:
            return parse_stat(process.read("stat")).parent
    except RbtraceError:
        return 0


def runs_ruby(pid: int) -> bool:
    """Return whether a process runs CRuby; False if it is unreadable."""
    try:
        return _has_ruby(pid)
    except NotPermitted:
        return False


def check_permitted(candidates: Sequence[Candidate]) -> None:
    """Raise NotPermitted if we cannot read whether a candidate runs Ruby."""
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
