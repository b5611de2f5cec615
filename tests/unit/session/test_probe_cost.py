"""The cost of hits: the programs' time in the kernel's statistics, and a trap each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rbtrace_py.bpf.attach import Attacher, PerfUprobes, choose_attacher
from rbtrace_py.bpf.trap import trap_ns
from rbtrace_py.errors import BpfError
from rbtrace_py.session.probes import cost
from rbtrace_py.session.probes.cost import CostMeter


class Ran:
    """An engine whose program ran a given number of times, for a given time."""

    def __init__(self, runs: int, ns: int) -> None:
        self.run_time = lambda: (runs, ns)


class Statistics:
    """The statistics of a kernel that measures run time, or does not."""

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on

    def close(self) -> None:
        pass


Measure = Callable[..., Any]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Return the cost of two programs on the same sites, and of one on a different
    site."""

    def cost_with(trap: Callable[[object], float], is_on: bool = True) -> Any:
        monkeypatch.setattr(cost, "RunStatistics", lambda: Statistics(is_on))
        monkeypatch.setattr(cost, "trap_ns", trap)
        first, second, other = Ran(10, 4_000), Ran(10, 6_000), Ran(5, 1_000)
        with CostMeter(PerfUprobes()) as meter:
            meter.begin()
            meter.stop([first, other, second], [first, other])  # type: ignore[list-item]
            return meter.cost()

    return cost_with


def test_programs_and_traps(measured: Measure) -> None:
    """A site has one trap, however many programs are attached."""
    found = measured(lambda attacher: 400.0)
    assert (found.hits, found.ns) == (15, 4_000 + 6_000 + 1_000 + 15 * 400)
    assert found.elapsed_ns > 0
    assert found.ns_each == found.ns / 15
    assert found.share == found.ns / found.elapsed_ns


def test_an_unknown_cost_is_not_reported(measured: Measure) -> None:
    assert measured(lambda attacher: 400.0, is_on=False) is None
    for error in (BpfError("refused"), OSError(24, "Too many open files")):

        def refuse(attacher: object, error: Exception = error) -> float:
            raise error

        assert measured(refuse) is None


@pytest.mark.parametrize("attacher", [choose_attacher, PerfUprobes])
def test_a_trap(attacher: Callable[[], Attacher], root: None) -> None:
    """A trap into the kernel and back takes more than an empty turn of the loop (0.4
    ns)."""
    assert trap_ns(attacher()) > 40
