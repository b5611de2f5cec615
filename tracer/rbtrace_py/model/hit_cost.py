"""The cost of tracing to the traced processes."""

from __future__ import annotations

from typing import NamedTuple


class HitCost(NamedTuple):
    """The CPU time that hits of probes took from the threads that hit them.

    Attributes:
        hits: Number of hits, including filtered ones, which cost as much.
        ns: Time in the traps into the kernel and in the BPF programs.
        elapsed_ns: Time for which probes were traced.
    """

    hits: int
    ns: int
    elapsed_ns: int

    @property
    def ns_each(self) -> float:
        return self.ns / self.hits if self.hits else 0.0

    @property
    def share(self) -> float:
        """Fraction of one CPU; 1 is a whole CPU."""
        return self.ns / self.elapsed_ns if self.elapsed_ns else 0.0
