"""Samples and slow spans, joined by fiber and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.aggregate.slow.spans import EndedSpan, SlowSpans
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.events import Event
from rbtrace_py.model.probes import Binary, Probe
from rbtrace_py.model.stacks import Sample, ThreadState
from sample_makers import MAIN, WORKER, stack

END = Probe("shop", "checkout__end", Binary(1, 2, "/memfd", True), ())
OURS, OTHERS = 0xF1, 0xF2


def sample(
    ended: int, lasted: int, name: str, fiber: int = OURS, thread: object = MAIN
) -> Sample:
    """A sample of the time until ``ended``; off the CPU if ``name`` is a reason."""
    frames = stack(name)
    return Sample(ended, thread, ThreadState.RUNNING, frames, lasted, fiber=fiber)  # type: ignore[arg-type]


def span(
    began: int, ended: int, fiber: int = OURS, name: str = "checkout"
) -> EndedSpan:
    event = Event(ended, MAIN.pid, MAIN.tid or 0, "", END)
    return EndedSpan(name, event, ended - began, MAIN.address, fiber)


def part_of(one: Sample) -> str:
    name = one.stack.frames[-1].name
    return name.strip("()") if name.startswith("(") else "on CPU"


def joined(
    samples: Iterable[Sample], *spans: EndedSpan, most_samples: int = 99
) -> SlowSpans:
    found = SlowSpans(5, StackCounts(), part_of, 2, most_samples=most_samples)
    for one in samples:
        found.add(one)
    for each in spans:
        found.end(each)
    return found


def weights(found: SlowSpans) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for row in found.counts.rows():
        rows[row.frames[-1].name] += row.weight
    return dict(rows)


def test_times_are_cut_to_the_span() -> None:
    samples = [
        sample(100, 50, "before"),
        sample(120, 20, "work"),
        sample(150, 30, "(sleep)"),
        sample(160, 10, "work"),
        sample(200, 40, "after"),
    ]
    found = joined(samples, span(110, 170))
    # From 160 to its end, it ran the method in which it was last seen.
    assert weights(found) == {"work": 10 + 10 + 10, "(sleep)": 30}
    assert found.part().parts == {"on CPU": 30, "sleep": 30}


def test_a_wait_at_the_end_is_no_work() -> None:
    found = joined([sample(105, 9, "work"), sample(150, 45, "(lock)")], span(100, 152))
    assert weights(found) == {"work": 5 + 2, "(lock)": 45}


def test_a_wait_whose_end_was_missed() -> None:
    """It is known at the next tick, which may come after the span's end."""
    samples = [sample(105, 9, "work"), sample(160, 55, "(sleep)")]
    found = joined([*samples, sample(170, 10, "later")], span(100, 152))
    assert weights(found) == {"work": 5, "(sleep)": 47}
    assert found.part().parts == {"sleep": 47, "on CPU": 5}


def test_other_fibers_of_its_thread() -> None:
    samples = [
        sample(110, 10, "work"),
        sample(130, 20, "other", OTHERS),
        sample(140, 10, "work"),
    ]
    found = joined(samples, span(100, 145))
    assert weights(found) == {"work": 25}
    assert found.part().parts == {"on CPU": 25, "suspended": 20}


def test_time_without_a_sample() -> None:
    samples = [sample(110, 10, "work"), sample(130, 20, "other", OTHERS)]
    found = joined(samples, span(100, 145), span(200, 210))
    # From 130 to 145, either of the two ran.
    assert found.part().parts == {"suspended": 20, "not sampled": 15 + 10, "on CPU": 10}


def test_before_a_thread_has_fibers_its_samples_have_none() -> None:
    samples = [sample(110, 10, "work", 0), sample(120, 10, "work")]
    assert weights(joined(samples, span(100, 120))) == {"work": 20}


def test_other_threads() -> None:
    samples = [sample(110, 10, "work"), sample(115, 15, "else", OURS, WORKER)]
    assert weights(joined(samples, span(100, 110))) == {"work": 10}


def test_time_in_two_spans_is_in_the_stacks_once() -> None:
    samples = [sample(at, 10, "work") for at in range(110, 160, 10)]
    found = joined(samples, span(110, 120), span(125, 140), span(105, 150))
    assert weights(found) == {"work": 45}
    assert found.part().total_ns == 10 + 15 + 45
    assert found.part().parts == {"on CPU": 70}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=8))
def test_any_spans(pairs: list[tuple[int, int]]) -> None:
    spans = sorted((began, began + size) for began, size in pairs)
    spans.sort(key=lambda one: one[1])
    samples = [sample(at, 1, "work") for at in range(1, 101)]
    found = joined(samples, *(span(*one) for one in spans), most_samples=1000)
    covered = {at for began, ended in spans for at in range(began, ended)}
    assert found.counts.weight == len(covered)
    assert found.part().total_ns == sum(found.part().parts.values())


def test_the_slowest() -> None:
    spans = [span(at, at + size) for at, size in ((0, 7), (10, 9), (20, 9), (30, 5))]
    part = joined([], *spans).part()
    assert (part.count, part.total_ns) == (4, 30)
    began = [one.span.began_ns for one in part.exemplars]
    assert began == [10, 20]


@pytest.mark.parametrize(("began", "incomplete"), [(109, 1), (111, 0), (130, 0)])
def test_samples_that_were_forgotten(began: int, incomplete: int) -> None:
    samples = [sample(at, 10, "work") for at in (100, 110, 120, 130)]
    found = joined(samples, span(began, 135), most_samples=2)
    assert found.incomplete == incomplete


def test_samples_that_come_late() -> None:
    samples = [sample(at, 10, f"at {at}") for at in (110, 130, 120)]
    found = joined(samples, span(100, 130))
    assert weights(found) == {"at 110": 10, "at 120": 10, "at 130": 10}


def test_a_run_without_a_tick_is_not_the_waits() -> None:
    """Time on the CPU is exact by the waits around it, but its stack is unknown."""
    samples = [sample(110, 10, "(sleep)"), sample(150, 30, "(lock)")]
    found = joined(samples, span(100, 155))
    assert weights(found) == {"(sleep)": 10, "(lock)": 30, "(running, not sampled)": 15}
    assert found.part().parts == {"sleep": 10, "lock": 30, "on CPU": 15}


def test_ticks_of_a_span_share_its_time_on_the_cpu() -> None:
    samples = [sample(101, 9, "a"), sample(150, 40, "(sleep)"), sample(151, 9, "b")]
    found = joined(samples, span(100, 170))
    assert weights(found) == {"a": 15, "b": 15, "(sleep)": 40}


def test_a_span_between_two_ticks_is_on_the_cpu() -> None:
    samples = [sample(100, 10, "before"), sample(125, 20, "after")]
    found = joined(samples, span(110, 120))
    assert weights(found) == {"(running, not sampled)": 10}
    assert found.part().parts == {"on CPU": 10}
