"""Cost of a stack at an event to the program, and the cost that the command reports."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from table import Row, interleaved, ns

from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import (
    EngineChoice,
    EventChoice,
    SamplingOptions,
)
from rbtrace_py.session.targets.targets import Targets
from targets import PARTS, Target, ruby_target

EVENTS = (
    ("a probe", "fire", EventChoice("bench:hit")),
    ("a probe, passed over", "fire", EventChoice("bench:hit", every=1 << 30)),
    ("a system call", "ask", EventChoice("syscall:getppid")),
    ("a function, stepped", "ask", EventChoice("uprobe:libc:getppid")),
)
"""Events, each with the command of ruby/events.rb that fires it."""
DEPTHS = (5, 80, 500)


def cost(times: int, rounds: int) -> list[Row]:
    """Measure the program's CPU time per event, beyond that without a tracer."""
    target = ruby_target("events.rb")
    said: dict[str, list[float]] = {}
    variants: dict[str, Callable[[], float]] = {}
    try:
        for depth in DEPTHS:
            for name, verb, event in EVENTS:
                what, command = f"{name}, {depth} frames", f"{verb} {depth}"
                variants[what] = _one(target, command, times, event, said, what)
        found = interleaved(variants, rounds)
    finally:
        target.close()
    return [
        Row(what, ns(median(found[what])), f"said {ns(median(said[what]))}")
        for what in variants
    ]


def _one(
    target: Target,
    command: str,
    times: int,
    event: EventChoice,
    said: dict[str, list[float]],
    what: str,
) -> Callable[[], float]:
    def run() -> float:
        alone = target.hit(command, times)
        targets = Targets.from_pids([target.pid])
        mode, engine = SamplingMode.EVENT, EngineChoice.BPF
        options = SamplingOptions(mode=mode, engine=engine, event=event)
        try:
            with Sampling(targets, options) as sampling:
                traced = target.hit(command, times)
                assert sampling.events is not None
                spent = sampling.events.cost
                spent.measure(is_last=True)
                assert spent.hits == times * PARTS, f"{what}: {spent.hits:,} events"
                said.setdefault(what, []).append(spent.ns_each)
        finally:
            targets.close()
        return traced - alone

    return run
