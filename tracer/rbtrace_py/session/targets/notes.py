"""Notes of a session for the user, one per line."""

from __future__ import annotations

_MOST = 50
"""Maximum number of notes: children may appear forever."""


def skipped(pid: int, reason: object) -> str:
    """Return the note for a process whose part of the result is missing."""
    return f"skipping process {pid}: {reason}"


class Notes(list[str]):
    """A list whose ``add`` skips duplicates, up to a limit."""

    def add(self, *notes: str) -> None:
        for note in notes:
            if note not in self and len(self) < _MOST:
                self.append(note)
