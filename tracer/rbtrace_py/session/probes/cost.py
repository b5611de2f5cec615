"""The cost of a session's probe hits for the traced processes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.probe_engine import Engine
from rbtrace_py.bpf.run_statistics import RunStatistics
from rbtrace_py.bpf.trap import trap_ns
from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.closing import Closing
from rbtrace_py.model.hit_cost import HitCost


class CostMeter(Closing):
    """Measures the cost of probe hits. The kernel times each run of a program.

    Timing starts on creation. Call ``begin`` once everything is attached: the elapsed
    time of the cost starts then.
    """

    def __init__(self, attacher: Attacher) -> None:
        self._attacher = attacher
        self._statistics = RunStatistics()
        self._began = time.monotonic_ns()
        self._hits = self._ns = self._elapsed_ns = 0

    def begin(self) -> None:
        self._began = time.monotonic_ns()

    def stop(self, engines: Sequence[Engine], counting: Sequence[Engine]) -> None:
        """Read the totals.

        Args:
            engines: All engines of the session.
            counting: Engines that count hits. No two of them share a site.
        """
        self._elapsed_ns = time.monotonic_ns() - self._began
        self._ns = sum(engine.run_time()[1] for engine in engines)
        self._hits = sum(engine.run_time()[0] for engine in counting)

    def cost(self) -> HitCost | None:
        """Return the cost; None: the kernel did not measure.

        This takes about 30 ms to measure the cost of traps.
        """
        if not self._statistics.is_on:
            return None
        try:
            traps = self._hits * trap_ns(self._attacher) if self._hits else 0
        except (RbtraceError, OSError):
            return None  # do not fail: the session's result matters more
        return HitCost(self._hits, self._ns + round(traps), self._elapsed_ns)

    def close(self) -> None:
        self._statistics.close()
