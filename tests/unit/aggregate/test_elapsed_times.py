"""Elapsed time of threads: run time, run queue, and waits."""

from __future__ import annotations

from rbtrace_py.aggregate.elapsed_times import CpuTimes, ElapsedTimes

ONE, TWO = (10, 10), (10, 11)


def test_waits_get_what_the_run_time_leaves() -> None:
    """Chance decides which part of the samples was running."""
    times = ElapsedTimes()
    assert times.divide(ONE, 300, 700, CpuTimes(400, 0)) == (0, 600)
    assert times.divide(ONE, 500, 500, CpuTimes(800, 0)) == (0, 600)


def test_a_run_queue_gets_what_exceeds_the_run_time() -> None:
    times = ElapsedTimes()
    assert times.divide(ONE, 700, 300, CpuTimes(400, 250)) == (250, 350)
    assert times.divide(TWO, 1000, 0, CpuTimes(400, 900)) == (600, 0)


def test_times_before_the_sampling_do_not_count() -> None:
    times = ElapsedTimes()
    times.begin(ONE, CpuTimes(9000, 5000))
    assert times.divide(ONE, 700, 300, CpuTimes(9400, 5100)) == (100, 500)
    assert times.divide(ONE, 700, 300, CpuTimes(9800, 5500)) == (400, 200)


def test_an_older_thread_that_was_not_known_yet() -> None:
    times = ElapsedTimes()
    assert times.divide(ONE, 700, 300, CpuTimes(90_000, 5000)) == (0, 300)
    assert times.divide(ONE, 700, 300, CpuTimes(90_400, 5200)) == (200, 400)


def test_chance_does_not_add_up() -> None:
    """Samples that are ready too often in one batch are too rare in the next ones."""
    times = ElapsedTimes()
    found = [
        times.divide(ONE, ready, 1000 - ready, CpuTimes(500 * number, 10_000))
        for number, ready in enumerate((550, 450, 550, 450, 550), 1)
    ]
    assert found == [(50, 450), (0, 500), (0, 500), (0, 500), (0, 500)]


def test_run_time_that_is_known_late() -> None:
    """The kernel updates the run time of a running thread at its ticks."""
    times = ElapsedTimes()
    assert times.divide(ONE, 1000, 0, CpuTimes(996, 0)) == (0, 0)
    assert times.divide(ONE, 500, 500, CpuTimes(1500, 0)) == (0, 500)


def test_more_run_time_than_elapsed_time() -> None:
    times = ElapsedTimes()
    times.begin(ONE, CpuTimes(0, 0))
    assert times.divide(ONE, 10, 90, CpuTimes(150, 0)) == (0, 0)
    assert times.divide(ONE, 10, 90, CpuTimes(150, 0)) == (0, 50)


def test_time_that_the_kernel_does_not_count_does_not_add_up() -> None:
    """Time in which a process is paused is neither run time nor run delay."""
    times = ElapsedTimes()
    for number in range(1, 101):
        ran = CpuTimes(950 * number, 0)
        assert times.divide(ONE, 1000, 0, ran) == (0, 0)
    queued, waiting = times.divide(ONE, 990, 10, CpuTimes(95_950, 0))
    assert (queued, waiting <= 1000) == (0, True)


def test_run_time_of_waits_does_not_hide_a_later_run_queue() -> None:
    """A thread may run while its samples show it waiting, in system calls for one."""
    times = ElapsedTimes()
    for number in range(1, 101):
        times.divide(ONE, 100, 900, CpuTimes(200 * number, 0))
    found = [
        times.divide(ONE, 1000, 0, CpuTimes(20_000 + 500 * n, 500 * n))[0]
        for n in range(1, 11)
    ]
    assert sum(found) >= 0.75 * 5000


def test_threads_that_ended_are_forgotten() -> None:
    times = ElapsedTimes()
    for thread in (ONE, TWO):
        times.divide(thread, 100, 0, CpuTimes(100, 0))
    times.forget_ended({ONE}, lambda thread: True)
    assert list(times._threads) == [ONE]
    times.forget_ended((), lambda thread: False)
    assert list(times._threads) == [ONE]
