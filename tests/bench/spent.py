"""CPU time that a tool uses itself, and in its BPF programs on any CPU.

The kernel counts the BPF programs' time only while ``RunStatistics`` exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Spent(NamedTuple):
    """CPU time in ns. ``bpf`` is the time of the BPF programs whose descriptors the
    process holds."""

    own: float
    bpf: float

    @classmethod
    def of(cls, pid: int) -> Spent:
        """Return the time so far. Own time is exact; ``stat`` would count ticks."""
        tasks = Path(f"/proc/{pid}/task").iterdir()
        own = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
        return cls(own, sum(map(_run_time, Path(f"/proc/{pid}/fdinfo").iterdir())))

    def since(self, before: Spent) -> Spent:
        return Spent(self.own - before.own, self.bpf - before.bpf)

    def by(self, number: float) -> Spent:
        return Spent(self.own / number, self.bpf / number)

    @property
    def both(self) -> float:
        return self.own + self.bpf


def _run_time(fd: Path) -> int:
    """Return ``run_time_ns`` of a descriptor's program, or 0 for other descriptors."""
    with suppress(FileNotFoundError):  # it was closed just now
        for line in fd.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "run_time_ns":
                return int(value)
    return 0


def middle(values: Sequence[float], form: str = ".2f") -> str:
    """Return the median, the minimum, and the maximum."""
    low, high = min(values), max(values)
    return f"{median(values):{form}} ({low:{form}}–{high:{form}})"
