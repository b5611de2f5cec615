"""A probe in a listing of several processes."""

from __future__ import annotations

from typing import NamedTuple

from rbtrace_py.model.probes import Probe


class Listed(NamedTuple):
    """A probe, and the processes that have it.

    Attributes:
        probe: The probe.
        traced: True if it is traced in any of the processes; None if unknown.
        pids: The processes that have it.
    """

    probe: Probe
    traced: bool | None
    pids: tuple[int, ...] = ()
