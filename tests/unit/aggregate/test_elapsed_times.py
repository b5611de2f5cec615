"""Elapsed time of threads: run time, run queue, and waits."""

from __future__ import annotations

from rbtrace_py.aggregate.elapsed_times import ElapsedTimes

ONE, TWO = (10, 10), (10, 11)


def test_waits_get_what_the_run_time_leaves() -> None:
    """Whatever part of the samples was running by chance."""
    times = ElapsedTimes()
    assert times.divide(ONE, ready=300, waits=700, ran=400, delayed=0) == (0, 600)
    assert times.divide(ONE, ready=500, waits=500, ran=400, delayed=0) == (0, 600)


def test_a_run_queue_gets_what_exceeds_the_run_time() -> None:
    times = ElapsedTimes()
    assert times.divide(ONE, ready=700, waits=300, ran=400, delayed=250) == (250, 350)
    assert times.divide(TWO, ready=1000, waits=0, ran=400, delayed=900) == (600, 0)


def test_a_run_delay_before_the_sampling_does_not_count() -> None:
    times = ElapsedTimes()
    times.begin(ONE, 5000)
    assert times.divide(ONE, ready=700, waits=300, ran=400, delayed=5100) == (100, 500)
    assert times.divide(ONE, ready=700, waits=300, ran=400, delayed=5500) == (400, 200)


def test_chance_does_not_add_up() -> None:
    """Samples that are ready too often in one batch are too rare in the next ones."""
    times = ElapsedTimes()
    found = [
        times.divide(ONE, ready=ready, waits=1000 - ready, ran=500, delayed=10_000)
        for ready in (550, 450, 550, 450, 550)
    ]
    assert found == [(50, 450), (0, 500), (0, 500), (0, 500), (0, 500)]


def test_run_time_that_is_known_late() -> None:
    """A batch without a running sample leaves its run time to the next one."""
    times = ElapsedTimes()
    assert times.divide(ONE, ready=0, waits=1000, ran=0, delayed=0) == (0, 1000)
    assert times.divide(ONE, ready=10, waits=990, ran=200, delayed=0) == (0, 800)
    # The kernel updates it at its ticks.
    assert times.divide(TWO, ready=1000, waits=0, ran=996, delayed=0) == (0, 0)
    assert times.divide(TWO, ready=500, waits=500, ran=504, delayed=0) == (0, 500)


def test_more_run_time_than_elapsed_time() -> None:
    times = ElapsedTimes()
    assert times.divide(ONE, ready=10, waits=90, ran=150, delayed=0) == (0, 0)
    assert times.divide(ONE, ready=10, waits=90, ran=0, delayed=0) == (0, 50)
