"""Limits that end a session."""

from __future__ import annotations

from dataclasses import dataclass

REFRESH_SECONDS = 0.1
"""Seconds between two updates of a session that may grow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a session. The session ends at the first limit. None: no limit.

    Attributes:
        duration: Seconds.
        count: Events; the session ends soon after this many were seen.
        interval: Seconds between snapshots.
    """

    duration: float | None = None
    count: int | None = None
    interval: float | None = None
