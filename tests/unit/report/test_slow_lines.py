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


def below(result: Result) -> list[str]:
    """The lines below the histogram."""
    lines = list(latency_report(result, PLAIN))
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
