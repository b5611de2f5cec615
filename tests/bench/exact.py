"""Compare the kernel's buckets with an HdrHistogram of all values."""

from __future__ import annotations

from hdrh.histogram import HdrHistogram
from table import Row

from rbtrace_py.aggregate.hdr import HIGHEST
from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.session.probes.latency import Latency
from rbtrace_py.session.targets.targets import Targets
from targets import c_target

PERCENTILES = [*(i / 4 for i in range(401)), 99.9, 99.99, 99.999]
_MASK = (1 << 64) - 1


def durations(seed: int, count: int) -> list[int]:
    """Return the durations that target.c fires for ``spans SEED COUNT``."""
    values = []
    state = seed
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
        values.append(1 + (z >> 23) % (1 << (1 + z % 41)))
    return values


def percentiles(seed: int, count: int) -> list[Row]:
    target = c_target()
    try:
        targets = Targets.from_pids([target.pid])
        with Latency(targets, ["bench:span__end"]) as session:
            target.ask(f"spans {seed} {count}")
            session.finish()
            group = session.snapshot().groups[0]
        targets.close()
    finally:
        target.close()
    values = durations(seed, count)
    reference = HdrHistogram(1, HIGHEST, 3)
    for value in values:
        reference.record_value(value)
    ours = group.distribution
    assert isinstance(ours, Histogram)
    equal = sum(
        ours.percentile(p) == reference.get_value_at_percentile(p) for p in PERCENTILES
    )
    buckets = ours.keys == Histogram.from_values(values).keys
    yes = {True: "equal", False: "NOT EQUAL"}
    return [
        Row(
            f"percentiles of {count:,} random durations against HdrHistogram's",
            f"{equal} of {len(PERCENTILES)} equal",
            goal="all equal",
        ),
        Row("their buckets", f"{len(ours.keys):,}, {yes[buckets]}", goal="equal"),
        Row(
            "their count and sum",
            yes[group.count == count and group.total == sum(values)],
            goal="equal",
        ),
    ]
