"""When a session is to end."""

from __future__ import annotations

from dataclasses import dataclass

REFRESH_SECONDS = 0.1
"""How often a session that may grow looks for what is new."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to end, whichever comes first; None: when stopped.

    duration: seconds
    count: events; it ends soon after so many were seen
    interval: seconds between snapshots
    """

    duration: float | None = None
    count: int | None = None
    interval: float | None = None
