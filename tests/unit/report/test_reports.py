"""Reports, compared as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from rbtrace_py.aggregate.histogram import (
    FloatHistogram,
    Histogram,
    SignedHistogram,
)
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.model.recorded_groups import Key
from rbtrace_py.report.style import ASCII, PLAIN, Style
from rbtrace_py.report.terminal.results import (
    count_report,
    latency_report,
    values_report,
)
from rbtrace_py.report.text import width

SERIES = "shop:checkout"
VALUES = [round(200_000 * 1.02**n) for n in range(300)] + [9_000]
SECOND = 10**9


def result(
    groups: Sequence[Group],
    command: str = "latency",
    series: tuple[str, ...] = (SERIES,),
    elapsed: int = 3 * SECOND,
    counters: dict[str, int] | None = None,
    by: str | None = None,
) -> Result:
    return Result(
        command, (4211,), series, 0, elapsed, tuple(groups), counters or {}, by
    )


def latency(
    values: Sequence[int],
    key: Key = None,
    is_other: bool = False,
    truncated: bool = False,
) -> Group:
    return Group(
        SERIES,
        key,
        len(values),
        sum(values),
        Histogram.from_values(values),
        is_other,
        truncated,
    )


def check(lines: Iterable[str], expected: str) -> None:
    found = list(lines)
    assert "\n".join(found) == expected.strip("\n")
    assert max(map(width, found)) <= 80


def test_latency() -> None:
    counters = {"raised": 12, "no_begin": 1, "filtered": 0}
    lines = latency_report(result([latency(VALUES)], counters=counters), PLAIN)
    check(
        lines,
        """
shop:checkout                                                301 in 3.0 s  100/s

  min    9.00 µs      p50    3.82 ms      p90    41.2 ms      p99    70.3 ms
  p99.9  74.6 ms      max    74.6 ms      mean   12.6 ms      total   3.79 s

                                                             count      %  sum %
      5 µs –    10 µs  █                                         1    0.3    0.3
     10 µs –   160 µs                                            0    0.0    0.3
    160 µs –   320 µs  ████████████████████████▋                24    8.0    8.3
    320 µs –   640 µs  ████████████████████████████████████     35   11.6   19.9
    640 µs –  1.28 ms  ████████████████████████████████████     35   11.6   31.6
   1.28 ms –  2.56 ms  ████████████████████████████████████     35   11.6   43.2
   2.56 ms –  5.12 ms  ████████████████████████████████████     35   11.6   54.8
   5.12 ms – 10.24 ms  ████████████████████████████████████     35   11.6   66.4
  10.24 ms – 20.48 ms  ████████████████████████████████████     35   11.6   78.1
  20.48 ms – 40.96 ms  ████████████████████████████████████     35   11.6   89.7
  40.96 ms – 81.92 ms  ███████████████████████████████▉         31   10.3  100.0

  12 spans raised exceptions (included above)
  1 end without a begin
  no losses
""",
    )


def test_latency_in_ascii_and_one_unit() -> None:
    lines = latency_report(result([latency(VALUES)]), ASCII, "us")
    check(
        lines,
        """
shop:checkout                                                301 in 3.0 s  100/s

  min            9.0 us     p50        3,823.6 us     p90       41,189.4 us
  p99       70,320.1 us     p99.9     74,580.0 us     max       74,580.0 us
  mean      12,599.1 us     total  3,792,354.1 us

                                                             count      %  sum %
       5 us -     10 us  #                                       1    0.3    0.3
      10 us -    160 us                                          0    0.0    0.3
     160 us -    320 us  #######################                24    8.0    8.3
     320 us -    640 us  ##################################     35   11.6   19.9
     640 us -  1,280 us  ##################################     35   11.6   31.6
   1,280 us -  2,560 us  ##################################     35   11.6   43.2
   2,560 us -  5,120 us  ##################################     35   11.6   54.8
   5,120 us - 10,240 us  ##################################     35   11.6   66.4
  10,240 us - 20,480 us  ##################################     35   11.6   78.1
  20,480 us - 40,960 us  ##################################     35   11.6   89.7
  40,960 us - 81,920 us  ##############################         31   10.3  100.0

  no losses
""",
    )


def test_one_bucket() -> None:
    lines = latency_report(result([latency([5_000_000] * 3)]), PLAIN)
    check(
        lines,
        """
shop:checkout                                                    3 in 3.0 s  1/s

  min    5.00 ms      p50    5.00 ms      p90    5.00 ms      p99    5.00 ms
  p99.9  5.00 ms      max    5.00 ms      mean   5.00 ms      total  15.0 ms

                                                     count      %  sum %
  5.00 ms  ████████████████████████████████████████      3  100.0  100.0

  no losses
""",
    )


def test_nothing_seen() -> None:
    lines = latency_report(result([]), PLAIN)
    check(
        lines,
        """
shop:checkout                                                         0 in 3.0 s

  no losses
""",
    )


@pytest.mark.parametrize("columns", [80, 60, 50, 45, 40])
def test_a_narrow_terminal(columns: int) -> None:
    style = Style(width=columns)
    groups = [Group("shop:checkout", key, h.count, 10**9, h) for key, h in NARROW]
    for by in (None, "sku"):
        shown = groups if by else [replace(groups[0], key=None)]
        whole = Result(
            "latency",
            (1,),
            ("shop:checkout",),
            0,
            10**10,
            tuple(shown),
            {"raised": 3, "lost": 2},
            by=by,
            unit="ns",
        )
        for line in latency_report(whole, style):
            assert width(line) <= columns, line


NARROW = [
    ("tea", Histogram.from_values(range(1_000_000, 20_000_000, 50_000))),
    ("a key that is long", Histogram.from_values([5_000_000] * 1000)),
]


def test_huge_counts() -> None:
    keys = Histogram.from_values([1000, 1500]).keys
    values = Histogram(dict.fromkeys(keys, SECOND))
    group = Group(SERIES, None, values.count, 2500 * SECOND, values)
    counters = {"lost": 5, "kernel_missed": 1}
    found = result([group], elapsed=90_000 * SECOND, counters=counters)
    lines = latency_report(found, PLAIN)
    check(
        lines,
        """
shop:checkout                              2,000,000,000 in 25 h 0 min  22,222/s

  min    1.00 µs      p50    1.00 µs      p90    1.50 µs      p99    1.50 µs
  p99.9  1.50 µs      max    1.50 µs      mean   1.25 µs      total  2,500 s

                                                             count      %  sum %
     1 µs – 1.05 µs  ██████████████████████████████  1,000,000,000   50.0   50.0
  1.05 µs –  1.5 µs                                              0    0.0   50.0
   1.5 µs – 1.55 µs  ██████████████████████████████  1,000,000,000   50.0  100.0

  5 events were lost: the buffer was full
  1 hit was missed by the kernel
""",
    )


def test_several_series() -> None:
    groups = [latency([5_000_000] * 3)]
    lines = latency_report(result(groups, series=(SERIES, "shop:pay")), PLAIN)
    check(
        lines,
        """
shop:checkout                                                    3 in 3.0 s  1/s

  min    5.00 ms      p50    5.00 ms      p90    5.00 ms      p99    5.00 ms
  p99.9  5.00 ms      max    5.00 ms      mean   5.00 ms      total  15.0 ms

                                                     count      %  sum %
  5.00 ms  ████████████████████████████████████████      3  100.0  100.0

shop:pay                                                              0 in 3.0 s

  no losses
""",
    )


def by_sku() -> list[Group]:
    return [
        latency([3_000_000] * 5, "tea"),
        latency([1_000_000, 2_000_000], "x" * 40 + "\x1b[2J"),
        latency([7]),
        latency([500] * 9, is_other=True),
        latency([80_000], "long", truncated=True),
    ]


def test_latency_by_key() -> None:
    lines = latency_report(result(by_sku(), by="sku"), PLAIN)
    check(
        lines,
        """
shop:checkout                                                   18 in 3.0 s  6/s

  sku                         count      p50      p90      p99      max    total
  tea                             5  3.00 ms  3.00 ms  3.00 ms  3.00 ms  15.0 ms
  xxxxxxxxxxxxxxxxxxxxxxxxxx      2  1.00 ms  2.00 ms  2.00 ms  2.00 ms  3.00 ms
  xxxxxxxxxxxxxx\\e[2J
  long…                           1  80.1 µs  80.1 µs  80.1 µs  80.1 µs  80.0 µs
  nil                             1     7 ns     7 ns     7 ns     7 ns     7 ns
  (other)                         9   500 ns   500 ns   500 ns   500 ns  4.50 µs

  no losses
""",
    )


def test_latency_by_key_in_ascii_and_one_unit() -> None:
    lines = latency_report(result(by_sku(), by="sku"), ASCII, "ms")
    check(
        lines,
        """
shop:checkout                                                   18 in 3.0 s  6/s

  sku                            count  p50 ms  p90 ms  p99 ms  max ms  total ms
  tea                                5   3.000   3.000   3.000   3.000    15.000
  xxxxxxxxxxxxxxxxxxxxxxxxxxxxx      2   1.000   2.001   2.001   2.001     3.000
  xxxxxxxxxxx\\e[2J
  long...                            1   0.080   0.080   0.080   0.080     0.080
  nil                                1   0.000   0.000   0.000   0.000     0.000
  (other)                            9   0.001   0.001   0.001   0.001     0.004

  no losses
""",
    )


def test_reports_of_values_name_the_argument_and_show_times() -> None:
    values = SignedHistogram.from_values([5_000_000] * 4)
    group = Group(SERIES, None, 4, 20_000_000, values)
    found = replace(result([group], "values"), unit="ns", operand="duration_ns")
    lines = list(values_report(found, PLAIN))
    assert lines[0].startswith("shop:checkout duration_ns  ")
    assert lines[2].split()[:6] == ["min", "5.00", "ms", "p50", "5.00", "ms"]
    assert "20.0 ms" in "".join(lines)


def test_values() -> None:
    values = SignedHistogram.from_values(range(-20, 40))
    group = Group(SERIES, None, 60, 0, values)
    lines = values_report(result([group], "values", counters={"nil": 1}), PLAIN)
    check(
        lines,
        """
shop:checkout                                                  60 in 3.0 s  20/s

  min    -20      p50      9      p90     33      p99     38
  p99.9   39      max     39      mean   9.5

                                                       count      %  sum %
  -20 – -15  ████████████████████████████████████████      5    8.3    8.3
  -15 – -10  ████████████████████████████████████████      5    8.3   16.7
  -10 –  -5  ████████████████████████████████████████      5    8.3   25.0
   -5 –   0  ████████████████████████████████████████      5    8.3   33.3
    0 –   5  ████████████████████████████████████████      5    8.3   41.7
    5 –  10  ████████████████████████████████████████      5    8.3   50.0
   10 –  15  ████████████████████████████████████████      5    8.3   58.3
   15 –  20  ████████████████████████████████████████      5    8.3   66.7
   20 –  25  ████████████████████████████████████████      5    8.3   75.0
   25 –  30  ████████████████████████████████████████      5    8.3   83.3
   30 –  35  ████████████████████████████████████████      5    8.3   91.7
   35 –  40  ████████████████████████████████████████      5    8.3  100.0

  1 value was nil
  no losses
""",
    )


def test_values_of_floats() -> None:
    values = FloatHistogram.from_values([0.25, 0.5, 0.5, float("nan"), float("inf")])
    group = Group(SERIES, None, 5, 0, values)
    lines = values_report(result([group], "values"), PLAIN)
    check(
        lines,
        """
shop:checkout                                                 5 in 3.0 s  1.67/s

  min     0.25      p50      0.5      p90      0.5      p99      0.5
  p99.9    0.5      max      0.5      mean   0.417

                                                         count      %  sum %
  0.24 – 0.26  ████████████████████                          1   33.3   33.3
  0.26 –  0.5                                                0    0.0   33.3
   0.5 – 0.52  ████████████████████████████████████████      2   66.7  100.0

  1 value was Infinity
  1 was NaN
  no losses
""",
    )


def test_values_of_texts() -> None:
    groups = [Group(SERIES, "tea", 5), Group(SERIES, "milk", 7)]
    lines = values_report(result(groups, "values", by="sku"), PLAIN)
    check(
        lines,
        """
shop:checkout                                                   12 in 3.0 s  4/s

  sku   count     %
  milk      7  58.3
  tea       5  41.7

  no losses
""",
    )


def test_values_by_key() -> None:
    groups = [
        Group(SERIES, "tea", 2, 0, Histogram.from_values([1, 2])),
        Group(SERIES, "milk", 1, 0, Histogram.from_values([5])),
    ]
    lines = values_report(result(groups, "values", by="sku"), PLAIN)
    check(
        lines,
        """
shop:checkout                                                    3 in 3.0 s  1/s

  sku   count  p50  p90  p99  max
  tea       2    1    2    2    2
  milk      1    5    5    5    5

  no losses
""",
    )


def test_count() -> None:
    groups = [Group(SERIES, None, 1234), Group("shop:pay", None, 1)]
    series = ("shop:pay", SERIES, "gc")
    lines = count_report(result(groups, "count", series), PLAIN)
    check(
        lines,
        """
all probes                                                 1,235 in 3.0 s  412/s

  probe          count     %     rate
  shop:checkout  1,234  99.9    411/s
  shop:pay           1   0.1  0.333/s
  gc                 0   0.0      0/s

  no losses
""",
    )


def test_count_by_key() -> None:
    keys = ((10, 3), (9, 3), (-5, 3), (7, 40))
    groups = [Group(SERIES, key, count) for key, count in keys]
    lines = count_report(result(groups, "count", by="id"), PLAIN)
    check(
        lines,
        """
shop:checkout                                                49 in 3.0 s  16.3/s

  id  count     %
  7      40  81.6
  -5      3   6.1
  9       3   6.1
  10      3   6.1

  no losses
""",
    )


def test_only_colour_comes_with_colour() -> None:
    found = result([latency([5_000_000] * 3)], counters={"lost": 1, "raised": 1})
    coloured = "\n".join(latency_report(found, Style(colour=True)))
    assert "\x1b[31m1 event was lost: the buffer was full\x1b[m" in coloured
    for code in ("\x1b[m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[36m"):
        coloured = coloured.replace(code, "")
    assert coloured == "\n".join(latency_report(found, PLAIN))


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\u202e", "a\nb", "\udcff"])
def test_hostile_names_are_escaped(hostile: str) -> None:
    groups = [Group(hostile, hostile, 1)]
    lines = "".join(
        count_report(result(groups, "count", (hostile,), by=hostile), ASCII)
    )
    assert lines.isprintable()
    lines = "".join(count_report(result(groups, "count", (hostile, "b")), ASCII))
    assert lines.isprintable()


@pytest.mark.parametrize("unit", ["auto", "ns", "us", "ms", "s"])
@pytest.mark.parametrize("style", [PLAIN, ASCII])
def test_pictures_fit(unit: str, style: Style) -> None:
    values = [10**n for n in range(12)] * 1000
    found = result([latency(values)])
    for line in latency_report(found, style, unit):  # type: ignore[arg-type]
        assert width(line) <= 80
