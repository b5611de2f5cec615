"""Conditions on the samples and calls of a recording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rbtrace_py.errors import NoSuchTarget, UsageError
from rbtrace_py.linux.text import safe_text
from rbtrace_py.model.stacks import RubyThread, Sample, ThreadState

_MOST_TOLD = 10
_NAME_BYTES = 64


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions on samples and calls; none by default.

    Attributes:
        thread: Regular expression that a thread's name contains. In samples, a main
            thread without a name is ``main``.
        states: States of samples. Calls have no states.
        pids: Processes.
    """

    thread: str = ""
    states: frozenset[ThreadState] = frozenset()
    pids: frozenset[int] = frozenset()

    @property
    def are_set(self) -> bool:
        return bool(self.thread or self.states or self.pids)

    def of(
        self, samples: Iterable[Sample], known: dict[RubyThread, bool] | None = None
    ) -> Iterator[Sample]:
        """Yield the samples that match.

        Args:
            samples: Samples of a recording.
            known: Gets each thread, and whether it matches.

        Raises:
            UsageError: ``thread`` is not a regular expression.
        """
        expression = self.expression()
        # Match once per thread, because expressions are slow.
        known = {} if known is None else known
        for sample in samples:
            thread = sample.thread
            wanted = known.get(thread)
            if wanted is None:
                wanted = known[thread] = self.wants_pid(thread.pid) and (
                    expression.search(thread_name(thread)) is not None
                )
            if wanted and (not self.states or sample.state in self.states):
                yield sample

    def expression(self) -> re.Pattern[str]:
        """Return ``thread`` compiled; raise UsageError if it is malformed."""
        try:
            return re.compile(self.thread)
        except re.error as error:
            raise UsageError(f"--thread {self.thread!r}: {error}") from error

    def wants_pid(self, pid: int) -> bool:
        """Return whether a process matches."""
        return not self.pids or pid in self.pids

    def missing(
        self, path: str, threads: Iterable[tuple[int, str]]
    ) -> NoSuchTarget | None:
        """Return the error that no thread of a recording matches; None if one does.

        Args:
            path: The recording.
            threads: Process and name of each of its threads.
        """
        found = dict.fromkeys(threads)
        of_pids = [name for pid, name in found if self.wants_pid(pid)]
        expression = self.expression()
        if not found or any(map(expression.search, of_pids)):
            return None
        if not of_pids:
            what = "process " + " or ".join(map(str, sorted(self.pids)))
            there = [str(pid) for pid in sorted({pid for pid, _ in found})]
        else:
            what = f"thread whose name matches {self.thread!r}"
            there = [
                safe_text(_bytes(name), _NAME_BYTES) for name in dict.fromkeys(of_pids)
            ]
            there = sorted(name or "(no name)" for name in there)
        more = f", and {len(there) - _MOST_TOLD} more" if there[_MOST_TOLD:] else ""
        return NoSuchTarget(
            f"there is no {what} in {path}",
            f"Use one of {', '.join(there[:_MOST_TOLD])}{more}",
        )


def thread_name(thread: RubyThread) -> str:
    """Return the name of a sampled thread that filters match."""
    return thread.name or ("main" if thread.is_main else "")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
