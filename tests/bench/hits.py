"""Cost of a hit to the traced program, by the attached program."""

from __future__ import annotations

from collections.abc import Callable

from table import Row, compared, interleaved

from rbtrace_py.session.probes.count import Count
from rbtrace_py.session.probes.grouped import Grouped
from rbtrace_py.session.probes.latency import Latency
from rbtrace_py.session.probes.query import ProbeOptions
from rbtrace_py.session.probes.session import ProbeSession
from rbtrace_py.session.probes.trace import Trace
from rbtrace_py.session.targets.targets import Targets
from targets import PARTS, Bare, Target, c_target, ruby_target

Make = Callable[[Targets], ProbeSession]


class Hits:
    """Measures sessions on a target, each attached only for its measurement."""

    def __init__(self, times: int, rounds: int) -> None:
        self._times = times
        self._rounds = rounds
        self.lost: dict[str, int] = {}

    def measure(
        self, variants: dict[str, tuple[Target, str, Make]]
    ) -> dict[str, list[float]]:
        """Measure by name: the target, its command, and the session to attach."""
        return interleaved(
            {
                name: self._one(name, target, command, make)
                for name, (target, command, make) in variants.items()
            },
            self._rounds,
        )

    def _one(
        self, name: str, target: Target, command: str, make: Make
    ) -> Callable[[], float]:
        def run() -> float:
            targets = Targets.from_pids([target.pid])
            try:
                with make(targets) as session:
                    assert session.probes, f"{name}: nothing is attached"
                    found = target.hit(command, self._times, reader(session))
                    session.finish()
                    self._note_lost(name, session)
            finally:
                targets.close()
            return found

        return run

    def _note_lost(self, name: str, session: ProbeSession) -> None:
        """Note hits that were fired but are missing in the answer."""
        if isinstance(session, Trace):
            lost = session.result_counters()["lost"]
            assert not lost, f"{name}: {lost:,} events did not fit the ring"
        if isinstance(session, Bare) or not isinstance(session, Grouped):
            return
        fired = self._times * PARTS
        result = session.snapshot()
        missing = fired - result.count + session.counters()["kernel_missed"]
        self.lost[name] = self.lost.get(name, 0) + missing


def reader(session: ProbeSession) -> Callable[[], None]:
    """Return a function that empties the ring of ``trace``: with a full ring, hits
    cost less."""

    def read() -> None:
        if isinstance(session, Trace):
            for _ in session.events(0.0):
                pass

    return read


def bare(*words: str, reads: bool = False) -> Make:
    return lambda targets: Bare(targets, words, reads)


def count(*words: str) -> Make:
    return lambda targets: Count(targets, words)


def trace(*words: str) -> Make:
    return lambda targets: Trace(targets, words)


def latency(*words: str, by: str | None = None) -> Make:
    return lambda targets: Latency(targets, words, ProbeOptions(by=by))


def enabled(times: int, rounds: int) -> list[Row]:
    """Compare the gem's and the library's fire with the bare trap.

    The strict baseline is a loop in C around the trap. The other is an otherwise empty
    method in C that traps, called from Ruby.
    """
    rows = []
    c, ruby = c_target(), ruby_target()
    try:
        for name, operands, goal in (("two", 2, 1.15), ("twelve", 12, 1.3)):
            probe, fire = f"bench:{name}", f"fire {name}"
            trap, method = "trap in C", "trap in Ruby"
            site = "fire site" if operands == 2 else "fire site12"
            found = Hits(times, rounds).measure(
                {
                    trap: (c, fire, bare(probe)),
                    "C reads": (c, fire, bare(probe, reads=True)),
                    method: (ruby, site, bare("bench:site")),
                    "bare": (ruby, fire, bare(probe)),
                    "count": (ruby, fire, count(probe)),
                    "reads": (ruby, fire, bare(probe, reads=True)),
                    "trace": (ruby, fire, trace(probe)),
                }
            )
            what = f"P.fire, {operands} operands,"
            rows += [
                compared(f"{what} nothing done", found, ("bare", trap), goal),
                compared(f"{what} nothing done", found, ("bare", method), None),
                compared(f"{what} count", found, ("count", trap), goal),
                compared(f"{what} count", found, ("count", method), None),
                compared(f"{what} all read", found, ("reads", trap), goal),
                compared(f"{what} all read", found, ("reads", method), None),
                compared(f"{what} trace", found, ("trace", trap), None),
                compared(
                    f"sdt_fire, {operands} operands, all read",
                    found,
                    ("C reads", trap),
                    goal,
                ),
                compared(
                    f"trap in a method of {operands}", found, (method, trap), None
                ),
            ]
    finally:
        c.close()
        ruby.close()
    return rows


def measured(times: int, rounds: int) -> list[Row]:
    """Compare ``latency`` with empty BPF programs."""
    target = c_target()
    try:
        hits = Hits(times, rounds)
        ends = "bench:span__end"
        pair = ("bench:begin", "bench:end")
        fire = "fire span"
        found = hits.measure(
            {
                "one bare trap": (target, fire, bare(ends)),
                "span": (target, fire, latency(ends)),
                "by": (target, fire, latency(ends, by="id")),
                "two bare traps": (target, "pair", bare(*pair)),
                "pair": (target, "pair", latency("bench:begin..bench:end")),
                "pair by": (
                    target,
                    "pair",
                    latency("bench:begin..bench:end", by="id"),
                ),
            }
        )
    finally:
        target.close()
    lost = sum(hits.lost.values())
    one, two = "one bare trap", "two bare traps"
    return [
        compared("latency of a span", found, ("span", one), 1.06),
        compared("latency of a span --by an integer", found, ("by", one), 1.15),
        compared("latency of a pair", found, ("pair", two), 1.1),
        compared("latency of a pair --by an integer", found, ("pair by", two), 1.15),
        Row(
            f"lost at full rate, of {len(hits.lost) * rounds * times * PARTS:,}",
            f"{lost:,}",
            goal="0",
        ),
    ]
