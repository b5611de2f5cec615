"""Limits that end a session."""

from __future__ import annotations

from dataclasses import dataclass

REFRESH_SECONDS = 0.1
"""How often a session that may grow looks for what is new."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a session; the first that is reached ends it; None: until stopped.

    duration: seconds
    count: events; it ends soon after so many were seen
    interval: seconds between snapshots
    """

    duration: float | None = None
    count: int | None = None
    interval: float | None = None
