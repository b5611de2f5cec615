"""The slow part of a histogram, and the table of the slowest spans."""

from __future__ import annotations

from dataclasses import replace

from rbtrace_py.aggregate.histogram import Histogram
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.aggregate.slow.spans import EndedSpan, Exemplar, SlowPart
from rbtrace_py.model.events import Event
from rbtrace_py.model.probes import Binary, Operand, OperandRole, OperandType, Probe
from rbtrace_py.report.style import PLAIN, Style
from rbtrace_py.report.terminal.results import latency_report

MS = 1_000_000
END = Probe(
    "web",
    "request__end",
    Binary(1, 2, "/memfd", True),
    (),
    (
        Operand("duration_ns", OperandType.INTEGER, OperandRole.DURATION),
        Operand("outcome", OperandType.INTEGER, OperandRole.OUTCOME),
        Operand("path", OperandType.STRING),
    ),
)


def exemplar(ms: int, outcome: int, path: str, **parts: int) -> Exemplar:
    values = (ms * MS, outcome, path)
    event = Event((1_700_000_000 * 1000 + ms) * MS, 1, 2, "", END, values, (False,) * 3)
    found = {name.replace("_", " "): ns for name, ns in parts.items()}
    return Exemplar(EndedSpan("web:request", event, ms * MS, 3, 4), found)


SLOW = SlowPart(
    50 * MS,
    2,
    150 * MS,
    {"sleep": 140 * MS, "on CPU": 10 * MS},
    (
        exemplar(90, 0, "/a", sleep=85 * MS, on_CPU=5 * MS),
        exemplar(60, 1, "/b\n", sleep=55 * MS, on_CPU=5 * MS),
    ),
)
VALUES = [*(2 * MS for _ in range(7)), 40 * MS, 60 * MS, 90 * MS]
GROUP = Group("web:request", None, 10, sum(VALUES), Histogram.from_values(VALUES))
COUNTERS = {"lost_samples": 0, "incomplete_spans": 0}
RESULT = Result(
    *("latency", (1,), ("web:request",), 0, 10**9, (GROUP,), COUNTERS),
    slow=SLOW,
)


def below(result: Result, style: Style = PLAIN) -> list[str]:
    """The lines below the histogram."""
    lines = list(latency_report(result, style))
    return lines[next(n for n, line in enumerate(lines) if " slow from" in line) :]


def test_rows_are_marked_from_there_on() -> None:
    for style, mark, dash in ((PLAIN, "▸", "–"), (Style(ascii=True), ">", "-")):
        lines = list(latency_report(RESULT, style))
        first = next(n for n, line in enumerate(lines) if "sum %" in line) + 1
        rows = [
            (line[:17].rstrip(), line.split()[-3]) for line in lines[first : first + 5]
        ]
        assert rows == [
            (f"   2 ms {dash}   4 ms", "7"),
            (f"   4 ms {dash}  32 ms", "0"),
            (f"  32 ms {dash}  50 ms", "1"),
            (f"{mark} 50 ms {dash}  64 ms", "1"),
            (f"{mark} 64 ms {dash} 128 ms", "1"),
        ]


def test_where_the_time_went() -> None:
    first, second, *_ = below(RESULT)
    assert first == "▸ slow from 50.0 ms: 2 (20.0 %), 150 ms in total (73.5 %)"
    assert second == "  sleep 93.3 %, on CPU 6.7 %"


def test_the_slowest() -> None:
    _, _, _, heading, one, two, *_ = below(RESULT)
    assert heading.split() == ["the", "slowest", "duration", "sleep", "on", "CPU"]
    assert one.split("  ")[-1] == "5.00 ms"
    assert ' path: "/a" ' in one
    assert ' outcome: raised, path: "/b\\n" ' in two


def test_arguments_are_whole_below_a_row_that_is_too_narrow() -> None:
    parts = dict.fromkeys(("on_CPU", "run_queue", "GVL", "lock", "sleep"), 10 * MS)
    long = exemplar(90, 0, "/orders/" + "x" * 60, **parts)
    names = [*long.parts]
    slow = replace(
        SLOW,
        parts=dict.fromkeys(names, 7 * MS),
        exemplars=(long, exemplar(50, 0, "/b")),
    )
    result = replace(RESULT, slow=slow)
    path = f'path: "/orders/{"x" * 60}"'
    wide = list(latency_report(result, Style(spare=100)))
    assert any(f"{path}   90.0 ms" in line for line in wide)
    _, head, _, _, one, first, two, second, *_ = below(result, Style())
    assert head == "  on CPU 4.7 %, run queue 4.7 %, GVL 4.7 %, lock 4.7 %, sleep 4.7 %"
    assert [one.split()[1:3], first] == [["90.0", "ms"], f"    {path}"]
    assert [two.split()[1:3], second] == [["50.0", "ms"], '    path: "/b"']


def test_shares_are_not_broken_within_one() -> None:
    parts = dict.fromkeys(["on CPU", "run queue", "file or socket", "other wait"], MS)
    result = replace(RESULT, slow=replace(SLOW, parts=parts))
    assert below(result)[1] == (
        "  on CPU 0.7 %, run queue 0.7 %, file or socket 0.7 %, other wait 0.7 %"
    )
    assert below(result, Style(width=40))[1:4] == [
        "  on CPU 0.7 %, run queue 0.7 %,",
        "  file or socket 0.7 %,",
        "  other wait 0.7 %",
    ]


def test_nothing_was_slow() -> None:
    slow = replace(SLOW, count=0, total_ns=0, parts={}, exemplars=())
    assert below(replace(RESULT, slow=slow)) == [
        "▸ slow from 50.0 ms: 0 (0.0 %)",
        "",
        "  no losses",
    ]


def test_losses_are_said() -> None:
    counters = {"lost_samples": 3, "incomplete_spans": 1}
    assert below(replace(RESULT, counters=counters))[-2:] == [
        "  3 samples of stacks were lost",
        "  1 slow span lacks its first samples: more came than can be set aside",
    ]
