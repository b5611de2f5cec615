"""Notes of a session: what a user should know, a line each."""

from __future__ import annotations

_MOST = 50
"""More nobody reads, and children may come for ever."""


def skipped(pid: int, reason: object) -> str:
    """A process of several whose part of the answer is missing."""
    return f"skipping process {pid}: {reason}"


class Notes(list[str]):
    """A list to which ``add`` adds what is new in it."""

    def add(self, *notes: str) -> None:
        for note in notes:
            if note not in self and len(self) < _MOST:
                self.append(note)
