"""Lines of ``calls`` on a terminal: first a burst, then as many as one can read."""

from __future__ import annotations

from rbtrace_py.cli.common.call_writers import ReadableLines

A_SECOND, BURST = ReadableLines.A_SECOND, ReadableLines.BURST


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_as_a_whole() -> None:
    readable = ReadableLines(Clock())
    passed = [readable.passed(["one"]) for _ in range(BURST)]
    assert passed == [["one"]] * BURST
    assert (readable.left_out, readable.gap()) == (0, [])


def test_omissions_are_marked_where_they_occur() -> None:
    clock = Clock()
    readable = ReadableLines(clock)
    for _ in range(BURST):
        readable.passed(["before"])
    assert [readable.passed(["gone", "too"]) for _ in range(600)] == [[]] * 600
    clock.now = 0.5
    assert readable.passed(["gone"]) == []
    clock.now = 1.0
    assert readable.passed(["after"]) == ["*** 1,201 lines left out", "after"]
    more = [readable.passed(["after"]) for _ in range(A_SECOND)]
    assert (more.count(["after"]), more[-1]) == (A_SECOND - 1, [])
    assert (readable.left_out, readable.gap()) == (1202, ["*** 1 line left out"])


def test_a_quiet_program_loses_nothing() -> None:
    clock = Clock()
    readable = ReadableLines(clock)
    for number in range(50 * BURST):
        clock.now = number / A_SECOND
        assert readable.passed(["line"]) == ["line"]
