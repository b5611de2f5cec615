"""What tracing cost a process."""

from __future__ import annotations

from typing import NamedTuple


class HitCost(NamedTuple):
    """What hits of probes took of the threads that had them.

    hits: how many; those that a filter left out cost as much
    ns: the traps into the kernel and the BPF programs
    elapsed_ns: how long probes were traced
    """

    hits: int
    ns: int
    elapsed_ns: int

    @property
    def ns_each(self) -> float:
        return self.ns / self.hits if self.hits else 0.0

    @property
    def share(self) -> float:
        """Part of a CPU, 1 being all of one."""
        return self.ns / self.elapsed_ns if self.elapsed_ns else 0.0
