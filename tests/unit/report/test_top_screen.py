"""Screen of ``top`` as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import OTHER, Share
from rbtrace_py.aggregate.top import (
    Picture,
    RecentWeights,
    Slice,
    ThreadNow,
    Weights,
)
from rbtrace_py.model.stacks import Frame, FrameKind, RubyThread, ThreadState
from rbtrace_py.report.style import ASCII, PLAIN, Style
from rbtrace_py.report.terminal.top import TopView, plain_lines, whole_lines
from rbtrace_py.report.terminal.top_screen import screen_lines
from rbtrace_py.report.text import width

MAIN = Frame(FrameKind.RUBY, "<main>", "<main>", "/srv/shop/shop.rb", 40)
TOTAL = Frame(FrameKind.RUBY, "Order#total", "total", "/srv/shop/order.rb", 7)
SLEEP = Frame(FrameKind.C, "Kernel#sleep", "sleep", "/srv/shop/shop.rb", 41)
STATISTICS = Statistics(
    rate=99, rounds=990, samples=990, late=2, ended_ns=10 * 10**9 + 5, started_ns=5
)
WEIGHTS = (
    Weights(MAIN, 0, 400, 10, 990),
    Weights(TOTAL, 300, 300, 480, 480),
    Weights(SLEEP, 100, 100, 500, 500),
)


def thread(name: str, tid: int | None, **rest: object) -> RubyThread:
    return RubyThread(1234, tid, tid or 1, name, **rest)  # type: ignore[arg-type]


THREADS = (
    ThreadNow(thread("", 1234, is_main=True), ThreadState.SLEEPING, 0.0, SLEEP),
    ThreadNow(thread("worker 1", 1240), ThreadState.RUNNING, 0.987, TOTAL),
    ThreadNow(thread("worker 2", None), ThreadState.UNKNOWN, None, None),
)
PICTURE = Picture(
    pids=(1234,),
    command="ruby shop.rb",
    rubies=("3.1.2",),
    mode="wall",
    statistics=STATISTICS,
    recent_ns=5 * 10**9,
    recent=400,
    weight=990,
    methods=WEIGHTS,
    lines=WEIGHTS,
    threads=THREADS,
)


def screen(picture=PICTURE, view=TopView(), columns=80, rows=24, style=PLAIN):  # noqa: B008
    lines = screen_lines(picture, view, columns, rows, style)
    assert len(lines) == rows
    assert all(width(line) <= columns for line in lines), lines
    return [line.rstrip() for line in lines]


def test_a_screen() -> None:
    assert screen(rows=15) == [
        "Ruby 3.1.2, pid 1234: ruby shop.rb",
        "wall: 990 samples in 10.0 s, 99 of 99 passes/s, 2 late, 0 failed",
        "last 5 s       since start",
        "self%  total%  self%  total%  method",
        " 75.0    75.0   48.5    48.5  Order#total /srv/shop/order.rb",
        " 25.0    25.0   50.5    50.5  Kernel#sleep",
        "  0.0   100.0    1.0   100.0  <main> /srv/shop/shop.rb",
        "",
        "3 threads: 1 running, 1 sleeping",
        "    tid  state      cpu%  name      in",
        "   1240  running    98.7  worker 1  Order#total /srv/shop/order.rb:7",
        "      ?  ?             –  worker 2  (not read)",
        "   1234  sleeping    0.0  main      Kernel#sleep /srv/shop/shop.rb:41",
        "",
        "q quit  ? help  s self  t total  l lines  T threads  space hold  c clear",
    ]


def test_threads_are_sorted_by_the_share_that_is_shown() -> None:
    shares = (0.013, 0.022, 0.012, 0.015)
    threads = tuple(
        ThreadNow(thread(f"worker {number}", number), ThreadState.SLEEPING, cpu, None)
        for number, cpu in enumerate(shares, 1)
    )
    lines = screen(replace(PICTURE, threads=threads), rows=15)[10:14]
    assert [line.split()[2] for line in lines] == ["2.2", "1.5", "1.3", "1.2"]


def test_a_narrow_screen() -> None:
    assert screen(columns=40, rows=16) == [
        "Ruby 3.1.2, pid 1234: ruby shop.rb",
        "wall: 990 samples in 10.0 s, 99 of 99",
        "passes/s, 2 late, 0 failed",
        "last 5 s",
        "self%  total%  method",
        " 75.0    75.0  Order#total order.rb",
        " 25.0    25.0  Kernel#sleep",
        "  0.0   100.0  <main> /srv/shop/shop.rb",
        "",
        "3 threads: 1 running, 1 sleeping",
        "state      cpu%  name      in",
        "running    98.7  worker 1  Order#total:7",
        "?             –  worker 2  (not read)",
        "sleeping    0.0  main      Kernel#sleep",
        "",
        "q quit  ? help  s self  t total  l lines",
    ]


@pytest.mark.parametrize("columns", [1, 7, 20, 39, 59, 60, 80, 200])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9, 24, 60])
@pytest.mark.parametrize("help_", [False, True])
def test_it_fits_everywhere(columns: int, rows: int, help_: bool) -> None:
    screen(columns=columns, rows=rows, view=TopView(help=help_))


def order(view: TopView) -> list[str]:
    lines = screen(view=view)
    at = next(i for i, line in enumerate(lines) if line.startswith("self%"))
    return [line[30:].split()[0] for line in lines[at + 1 : at + 4]]


def test_orders() -> None:
    assert order(TopView()) == ["Order#total", "Kernel#sleep", "<main>"]
    assert order(TopView(by_total=True)) == ["<main>", "Order#total", "Kernel#sleep"]
    assert order(TopView(reverse=True)) == ["<main>", "Kernel#sleep", "Order#total"]


def test_lines_have_numbers() -> None:
    said = "\n".join(screen(view=TopView(lines=True)))
    assert "  line\n" in said
    assert "Kernel#sleep /srv/shop/shop.rb:41" in said


def test_without_threads_and_with_few_rows() -> None:
    said = "\n".join(screen(view=TopView(threads=False, rows=1)))
    assert "threads:" not in said
    assert "Order#total" in said
    assert "Kernel#sleep" not in said


def test_many_of_both_share_the_rows() -> None:
    frames = [replace(TOTAL, name=f"C#m{n}") for n in range(100)]
    picture = replace(
        PICTURE,
        methods=tuple(Weights(frame, 1, 1, 1, 1) for frame in frames),
        threads=THREADS * 100,
    )
    lines = screen(picture)
    assert sum("C#m" in line for line in lines) == 11
    assert sum(line.endswith("order.rb:7") for line in lines) == 5
    assert "300 threads: 100 running, 100 sleeping" in lines


def test_nothing_on_a_cpu() -> None:
    picture = replace(PICTURE, mode="cpu", methods=(), recent=0, weight=0)
    said = "\n".join(screen(picture))
    assert "no thread was on CPU; --mode wall shows waiting threads" in said


def test_in_mode_cpu_all_is_one_cpu() -> None:
    """A program that ran for 0.1 of 10 s has 1 %, not 100 %."""
    one = Weights(SLEEP, 10**7, 10**7, 10**8, 10**8)
    statistics = replace(STATISTICS, unit="ns", samples=4)
    picture = replace(
        PICTURE, mode="cpu", statistics=statistics, recent=10**7, recent_ns=10**9,
        weight=10**8, methods=(one,),
    )  # fmt: skip
    lines = screen(picture)
    assert lines[1].startswith("cpu: 1.0 % of a CPU, 4 samples in 10.0 s, ")
    assert "  1.0     1.0    1.0     1.0  Kernel#sleep" in lines
    plain = list(plain_lines(picture, TopView(), "12:00:00", PLAIN))
    assert plain[0].startswith("12:00:00  1.0 % of a CPU, 10.0 ms, ")
    assert plain[2] == "  1.0     1.0  Kernel#sleep"
    assert (
        list(whole_lines(picture, TopView(), PLAIN))[1] == "  1.0     1.0  Kernel#sleep"
    )


def test_paths_are_relative_to_the_application() -> None:
    picture = replace(PICTURE, folder="/srv/shop")
    assert " 75.0    75.0   48.5    48.5  Order#total order.rb" in screen(picture)


def test_several_processes_and_held() -> None:
    picture = replace(PICTURE, pids=(1234, 1235))
    lines = screen(picture, TopView(is_held=True))
    assert lines[0].startswith("Ruby 3.1.2, 2 processes: ")
    assert lines[1].startswith("wall: frozen, 990 samples")
    assert "    pid      tid  state      cpu%  name      in" in lines


def test_hostile_texts_stay_in_their_place() -> None:
    bad = replace(TOTAL, name="a\x1b[2J\nb[red]", path="\u202e\x07漢" * 90)
    one = ThreadNow(thread("\x1b]0;x\x07" + "漢" * 50, 1), ThreadState.RUNNING, 1, bad)
    picture = replace(
        PICTURE,
        command="\x1b[31m\n" * 99,
        methods=(Weights(bad, 1, 1, 1, 1),),
        threads=(one,),
    )
    for style in (PLAIN, ASCII, Style(colour=True)):
        lines = screen_lines(picture, TopView(), 60, 24, style)
        text = "\n".join(lines)
        assert len(lines) == 24
        assert "[2J\n" not in text
        assert "\x1b[2J" not in text
        assert "\x07" not in text
        assert "\u202e" not in text
        assert style is not ASCII or text.isascii()
        assert "[red]" in text


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b" not in "".join(screen())
    coloured = "".join(screen_lines(PICTURE, TopView(), 80, 24, Style(colour=True)))
    assert "\x1b[32mrunning" in coloured


def test_lines_without_a_screen() -> None:
    assert list(plain_lines(PICTURE, TopView(), "12:00:00", PLAIN)) == [
        "12:00:00  400 samples, 99 of 99 passes/s, 2 late, 0 failed",
        "self%  total%  method",
        " 75.0    75.0  Order#total /srv/shop/order.rb",
        " 25.0    25.0  Kernel#sleep",
        "  0.0   100.0  <main> /srv/shop/shop.rb",
    ]
    assert list(whole_lines(PICTURE, TopView(rows=1), PLAIN)) == [
        "self%  total%  method",
        " 50.5    50.5  Kernel#sleep",
    ]
    by_line = list(whole_lines(PICTURE, TopView(rows=1, lines=True), PLAIN))
    assert by_line[0] == "self%  total%  line"


def test_weights_of_the_last_slices_and_of_all() -> None:
    weights = RecentWeights(kept=2)
    for number in range(3):
        shares = [Share(TOTAL, number, number + 1)]
        weights.add(Slice(10**9, 10, shares, shares))
    assert weights.methods() == (Weights(TOTAL, 1 + 2, 2 + 3, 3, 6),)
    assert weights.lines() == weights.methods()
    assert (weights.recent, weights.weight) == (20, 30)
    assert weights.recent_ns == 2 * 10**9


def test_too_many_methods_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rbtrace_py.aggregate.top.MAX_NAMES", 2)
    weights = RecentWeights(kept=1)
    shares = [Share(replace(TOTAL, name=f"m{n}"), 1, 1) for n in range(5)]
    weights.add(Slice(1, 5, shares, shares))
    found = {one.frame.name: one.own for one in weights.methods()}
    assert found == {"m0": 1, "m1": 1, OTHER.name: 3}
