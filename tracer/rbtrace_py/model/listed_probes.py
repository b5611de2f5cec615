"""A probe as a listing of several processes shows it."""

from __future__ import annotations

from typing import NamedTuple

from rbtrace_py.model.probes import Probe


class Listed(NamedTuple):
    """traced: does somebody trace it, in any of the processes (None: not known)

    pids: the processes that have it
    """

    probe: Probe
    traced: bool | None
    pids: tuple[int, ...] = ()
