"""Reports of samples, compared as a whole."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.errors import UsageError
from rbtrace_py.model.recording_meta import RUN_TIME, Meta
from rbtrace_py.model.stacks import (
    Frame,
    FrameKind,
    RubyThread,
    Sample,
    SampleFlags,
    Stack,
    ThreadState,
)
from rbtrace_py.report.exchange.folded import folded_lines
from rbtrace_py.report.exchange.pprof import varint
from rbtrace_py.report.exchange.rows import (
    Folding,
    Label,
    fold,
    frame_text,
    portable_label,
)
from rbtrace_py.report.flamegraph.colors import colour, kind_colour, legend
from rbtrace_py.report.flamegraph.tree import build, tree_of
from rbtrace_py.report.formats import FORMATS, format_named
from rbtrace_py.report.sample_query import ReportOptions
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.diff import diff_lines
from rbtrace_py.report.terminal.summary import summary_lines
from rbtrace_py.report.terminal.weights import statistics_lines
from sample_makers import MAIN, OTHER_PROCESS, START, WORKER, sample, shop, stack

FORMATS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "stacks.md"


def counted(*samples: Sample) -> StackCounts:
    return StackCounts().add_all(samples)


def rendered(name: str, profile: Profile, folding: Folding | None = None) -> str:
    file = BytesIO()
    FORMATS[name].render(profile, ReportOptions(folding or Folding()), file)
    return file.getvalue().decode()


def test_labels_of_another_release() -> None:
    """Only paths lose their directories."""
    worker = RubyThread(1, 2, 3, "redis://one/0")
    folded = fold(
        counted(sample("Integer#/", "<main>@/my app/v 1/shop.rb:3", thread=worker)),
        Folding(lines=True, threads=True),
    )
    (row,) = folded.stacks
    assert [portable_label(folded.labels[number]).text for number in row] == [
        "[redis://one/0, tid 2]",
        "Integer#/",
        "<main> shop.rb:3",
    ]


# ------------------------------------------------------------------- folded


def test_folded_is_a_contract() -> None:
    counts = StackCounts().add_all(shop(4))
    main, serve = "<main> /app/shop.rb", "Shop#serve /app/shop.rb"
    fib = "fib /app/fib.rb"
    assert list(folded_lines(counts)) == [
        f"{main};(garbage collection) 1",
        f"{main};Kernel#sleep /app/shop.rb 4",
        f"{main};{serve};Array#sum /app/shop.rb 1",
        f"{main};{serve};Order#total /app/order.rb 10",
        f"{fib} 1",
        f"{fib};{fib} 1",
        f"{fib};{fib};{fib} 1",
        f"{fib};{fib};{fib};{fib} 1",
    ]


def test_folded_with_lines_threads_and_states() -> None:
    counts = StackCounts().add_all(shop(2))
    main = "<main> /app/shop.rb:30"
    serve = "Shop#serve /app/shop.rb"
    total = "Order#total /app/order.rb:9"
    folding = Folding(lines=True, threads=True, states=True)
    assert list(folded_lines(counts, folding)) == [
        f"[pid 4211];[main, tid 4211];[running];{main};{serve}:5;{total} 1",
        f"[pid 4211];[main, tid 4211];[running];{main};{serve}:6;"
        "Array#sum /app/shop.rb:6 1",
        "[pid 4211];[worker 1, tid 4213];[running];fib /app/fib.rb:1 1",
        "[pid 4211];[worker 1, tid 4213];[running];fib /app/fib.rb:1;"
        "fib /app/fib.rb:2 1",
        f"[pid 4211];[worker 1, tid 4213];[waiting];{main};{serve}:5;{total} 4",
        f"[pid 4300];[thread];[sleeping];{main};Kernel#sleep /app/shop.rb:30 2",
    ]


def test_folded_of_one_process_does_not_name_it() -> None:
    counts = counted(sample("a"), sample("a", thread=WORKER))
    assert list(folded_lines(counts, Folding(threads=True))) == [
        "[main, tid 4211];a 1",
        "[worker 1, tid 4213];a 1",
    ]


def test_folded_in_reverse() -> None:
    counts = counted(sample("a", "b", "c"))
    folding = Folding(threads=True, reverse=True)
    assert list(folded_lines(counts, folding)) == ["[main, tid 4211];c;b;a 1"]


def test_folded_of_nothing() -> None:
    assert list(folded_lines(StackCounts())) == []
    empty = sample("a")._replace(stack=Stack(()))
    assert list(folded_lines(counted(empty))) == ["(empty) 1"]


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame(FrameKind.RUBY, "A#b", "b", "/x.rb", 3), "A#b /x.rb:3"),
        (Frame(FrameKind.RUBY, "A#b", "b", "/x.rb", None), "A#b /x.rb:?"),
        (Frame(FrameKind.RUBY, "A#b", "b", "/x.rb", 0), "A#b /x.rb:0"),
        (Frame(FrameKind.GC, "(gc)", "", "", None), "(gc)"),
        (Frame(FrameKind.RUBY, "", "", "(eval):1", 2), "(unknown) (eval):1:2"),
        (Frame(FrameKind.RUBY, "a;b\n", "", "/c;\x1b.rb", 2), "a,b? /c,?.rb:2"),
    ],
)
def test_text_of_a_frame(frame: Frame, text: str) -> None:
    assert frame_text(frame, lines=True) == text


@given(st.lists(st.lists(st.text(max_size=6), min_size=1, max_size=4), max_size=6))
def test_any_names_make_lines_that_can_be_taken_apart(rows: list[list[str]]) -> None:
    frames = [
        Stack(tuple(Frame(FrameKind.RUBY, n, n, n, 1) for n in names)) for names in rows
    ]
    counts = counted(*(sample("x")._replace(stack=one) for one in frames))
    lines = list(folded_lines(counts, Folding(lines=True)))
    assert lines == sorted(set(lines))
    total = 0
    for line in lines:
        found = re.fullmatch(r"([^;\n]+(?:;[^;\n]+)*) (\d+)", line)
        assert found, line
        assert line.isprintable()
        total += int(found[2])
    assert total == len(rows)


# ------------------------------------------------------------------ summary


def test_summary() -> None:
    statistics = Statistics(
        rate=100.0, started_ns=START, ended_ns=START + 10**10, rounds=990, late=1
    )
    counts = StackCounts(statistics).add_all(shop(4))
    statistics.failed = 2
    assert rendered("summary", Profile(counts)) == (
        "% self  % total  name\n"
        " 50.00    50.00  Order#total /app/order.rb\n"
        " 20.00    20.00  Kernel#sleep\n"
        " 20.00    20.00  fib /app/fib.rb\n"
        "  5.00     5.00  (garbage collection)\n"
        "  5.00     5.00  Array#sum\n"
        "  0.00    80.00  <main> /app/shop.rb\n"
        "  0.00    55.00  Shop#serve /app/shop.rb\n"
        "\n"
        "  16 samples in 10.0 s, 99.0 of 100 sampling passes per second\n"
        "  2 samples (12.5 %): newest frames changed while read"
        "; --pause reads them all\n"
        "  4 samples: oldest frames dropped (too deep)\n"
        "  1 late sampling pass (0.1 %)\n"
        "  2 failed samples (11.1 %)\n"
    )


def test_a_summary_of_mode_cpu_is_of_one_cpu() -> None:
    """A program on a CPU in 4 of 396 rounds has 1.01 %, not 100 %."""
    counts = StackCounts(Statistics(rate=99.0, rounds=396))
    counts.add_all([sample("c!Kernel#sleep@/app/shop.rb:7")] * 4)
    profile = Profile(counts, Meta(mode="cpu"))
    assert rendered("summary", profile).splitlines()[:3] == [
        "on CPU: 1.01 % of one CPU for the elapsed time",
        "% self  % total  name",
        "  1.01     1.01  Kernel#sleep",
    ]
    document = json.loads(rendered("json", profile))
    assert (document["weight"], document["one_cpu"]) == (4, 396)
    assert json.loads(rendered("json", Profile(counts)))["one_cpu"] is None
    counts.statistics.engine = "memory"
    first = rendered("summary", profile).splitlines()[0]
    assert first == "on CPU or runnable: 1.01 % of one CPU for the elapsed time"
    profile = Profile(counts, Meta(mode="cpu", weights=RUN_TIME))
    first = rendered("summary", profile).splitlines()[0]
    assert first == "on CPU: 1.01 % of one CPU for the elapsed time"


def test_paths_in_a_summary_are_relative_to_the_application() -> None:
    gem = "/usr/lib/ruby/gems/3.1.0/gems/puma-5.6.5/lib/puma/server.rb"
    one = sample("<main>@/app/shop.rb:3", f"Puma::Server#run@{gem}:38")
    profile = Profile(counted(one), Meta(folder="/app"))
    assert rendered("summary-by-line", profile).splitlines()[1:3] == [
        "100.00   100.00  Puma::Server#run puma-5.6.5 lib/puma/server.rb:38",
        "  0.00   100.00  <main> shop.rb:3",
    ]
    assert gem in rendered("folded", profile)


def test_a_summary_by_total() -> None:
    options = ReportOptions(by_total=True, rows=3)
    found = list(summary_lines(Profile(counted(*shop(4))), options))
    assert found[1:5] == [
        "  0.00    80.00  <main> /app/shop.rb",
        "  0.00    55.00  Shop#serve /app/shop.rb",
        " 50.00    50.00  Order#total /app/order.rb",
        "  4 more methods; --rows 7 shows all",
    ]


def test_summary_by_line() -> None:
    counts = counted(*shop(1), sample("a@/a.rb", "a@/a.rb:7"))
    text = rendered("summary-by-line", Profile(counts))
    assert text.splitlines()[1:4] == [
        " 50.00    50.00  Order#total /app/order.rb:9",
        " 16.67    16.67  Kernel#sleep /app/shop.rb:30",
        " 16.67    16.67  a /a.rb:7",
    ]
    assert "  0.00    16.67  a /a.rb:?\n" in text


def test_a_summary_has_eighty_columns() -> None:
    """A long path keeps its end, and so does a longer name."""
    path = f"/srv/{'very/' * 20}long/till.rb"
    frames = (f"Till#checkout@{path}:7", f"Till#{'x' * 80}@{path}:8")
    lines = rendered("summary-by-line", Profile(counted(sample(*frames)))).splitlines()
    long, short = lines[1:3]
    assert len(short) == len(long) == 80
    assert short.startswith("  0.00   100.00  Till#checkout …")
    assert short.endswith("very/long/till.rb:7")
    assert long == f"100.00   100.00  …{'x' * 45} …/long/till.rb:8"


@pytest.mark.parametrize("style", [Style(spare=120), Style(is_whole=True)])
def test_a_wide_terminal_has_room_for_paths_and_a_file_too(style: Style) -> None:
    path = f"/srv/{'very/' * 20}long/till.rb"
    profile = Profile(counted(sample(f"Till#checkout@{path}:7")))
    asked = ReportOptions(style=style)
    assert list(summary_lines(profile, asked))[1] == (
        f"100.00   100.00  Till#checkout {path}"
    )


@pytest.mark.parametrize("name", ["failed", "late", "trimmed", "truncated"])
def test_no_losses_is_printed_only_without_losses(name: str) -> None:
    own = Statistics(samples=3, rounds=3)
    setattr(own, name, 1)
    _, found = statistics_lines(own)
    assert "no losses" not in found


def test_statistics_say_that_nothing_was_lost() -> None:
    assert list(statistics_lines(Statistics(samples=1, other=3))) == [
        "  1 sample",
        "  3 samples with rare stacks are in (other)",
        "  no losses",
    ]


# ----------------------------------------------------------------- readable


def test_readable() -> None:
    samples = [
        sample("<main>@/a.rb:2", "c!Kernel#sleep@/a.rb:2", state=ThreadState.SLEEPING),
        sample(
            "f@/a.rb",
            at=1,
            thread=WORKER,
            weight=3,
            flags=SampleFlags.TRIMMED | SampleFlags.TRUNCATED,
        ),
    ]
    profile = Profile(counted(*samples), samples=lambda: samples)
    assert rendered("readable", profile) == (
        "2023-11-14 22:13:20.000000 pid 4211 [main, tid 4211] sleeping\n"
        "    Kernel#sleep /a.rb:2\n"
        "    <main> /a.rb:2\n"
        "\n"
        "2023-11-14 22:13:20.010000 pid 4211 [worker 1, tid 4213] running"
        " (3 samples)\n"
        "    (newest frames changed while read)\n"
        "    f /a.rb:?\n"
        "    (oldest frames missing)\n"
        "\n"
        "  2 samples\n"
        "  1 sample (50.0 %): newest frames changed while read"
        "; --pause reads them all\n"
        "  1 sample: oldest frames dropped (too deep)\n"
    )


def test_readable_of_counts_alone() -> None:
    text = rendered("readable", Profile(counted(sample("a"), sample("a"))))
    assert text.startswith("pid 4211 [main, tid 4211] running (2 samples)\n    a\n\n")


# --------------------------------------------------------------------- json


def test_json_is_what_its_page_says() -> None:
    page = FORMATS_PAGE.read_text()
    blocks = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (example,) = (b for b in map(json.loads, blocks) if b["schema"].endswith("stacks"))
    lasted = 10**10
    statistics = Statistics(
        "ns", rate=99.0, started_ns=START, ended_ns=START + lasted, rounds=1000
    )
    counts = StackCounts(statistics)
    one = sample("Shop#serve@/app/shop.rb:5", weight=lasted // 1000)
    for _ in range(1000):
        counts.add(one)
    meta = Meta(pids=(4211,), mode="wall", engine="memory")
    assert json.loads(rendered("json", Profile(counts, meta))) == example


# --------------------------------------------------------------------- diff


def test_diff() -> None:
    before = counted(
        sample("main@/v1/a.rb", "slow@/v1/a.rb", weight=60),
        sample("main@/v1/a.rb", "gone@/v1/a.rb", weight=40),
    )
    after = counted(
        sample("main@/v2/a.rb", "slow@/v2/a.rb", weight=15),
        sample("main@/v2/a.rb", "new@/v2/a.rb", weight=5),
    )
    assert list(diff_lines(before, after, ReportOptions())) == [
        "before → after: 100 samples → 20 samples",
        "",
        "% before   % after   change  methods, self",
        "   40.00      0.00   -40.00  gone a.rb",
        "    0.00     25.00   +25.00  new a.rb",
        "   60.00     75.00   +15.00  slow a.rb",
        "",
        "% before   % after   change  methods, total",
        "   40.00      0.00   -40.00  gone a.rb",
        "    0.00     25.00   +25.00  new a.rb",
        "   60.00     75.00   +15.00  slow a.rb",
        "",
        "% before   % after   change  stacks",
        "   40.00      0.00   -40.00  main a.rb;gone a.rb",
        "    0.00     25.00   +25.00  main a.rb;new a.rb",
        "   60.00     75.00   +15.00  main a.rb;slow a.rb",
    ]


def test_diff_of_the_same_and_of_nothing() -> None:
    counts = counted(*shop(3))
    lines = list(diff_lines(counts, counts, ReportOptions(Folding(lines=True))))
    assert lines.count("  the same") == 3
    lines = list(diff_lines(StackCounts(), counts, ReportOptions()))
    assert "    0.00     53.33   +53.33  Order#total order.rb" in lines


def test_rows_of_a_diff_are_bounded() -> None:
    deep = counted(sample(*[f"method{n}@/a.rb" for n in range(500)]))
    many = counted(*(sample(f"m{n}") for n in range(200)))
    lines = list(diff_lines(deep, many, ReportOptions()))
    assert max(map(len, lines)) < 200
    assert "  171 smaller changes; --rows 201 shows all" in lines
    (longest,) = (line for line in lines if "…" in line)
    assert longest.endswith("method498 a.rb;method499 a.rb")
    screen = ReportOptions(style=Style(height=24))
    lines = list(diff_lines(deep, many, screen))
    assert len(lines) < 23
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "  198 smaller changes; --rows 201 shows all"
    (longest,) = (line for line in lines if "…" in line)
    assert longest.endswith("  …;method497 a.rb;method498 a.rb;method499 a.rb")
    lines = list(diff_lines(deep, many, replace(screen, rows=2)))
    assert len(lines) == 1 + 3 * (2 + 2 + 1)


def test_a_long_name_in_a_diff_keeps_its_beginning() -> None:
    name = f"Shop#{'a' * 100}"
    screen = ReportOptions(style=Style(height=24))
    lines = list(diff_lines(counted(sample(name)), counted(sample("b")), screen))
    assert max(map(len, lines)) <= 80
    assert any("Shop#aaa" in line and line.endswith("…") for line in lines)


def test_a_summary_has_as_many_rows_as_the_terminal_has_room_for() -> None:
    counts = counted(*(sample(f"m{n}", weight=100 - n) for n in range(40)))

    def summary(**options: Any) -> list[str]:
        return list(summary_lines(Profile(counts), ReportOptions(**options)))

    whole = summary()
    screen = summary(style=Style(height=24))
    assert len(screen) == 22
    (left_out,) = (place for place, line in enumerate(screen) if "shows all" in line)
    assert screen[left_out] == f"  {41 - left_out} more methods; --rows 40 shows all"
    assert screen[:left_out] + screen[left_out + 1 :] == whole[:left_out] + whole[41:]
    assert summary(style=Style(height=24), rows=40) == whole
    assert summary(style=Style(height=60)) == whole
    assert summary(rows=2)[3] == "  38 more methods; --rows 40 shows all"


# -------------------------------------------------------------- flame trees


def test_tree_is_sorted_and_its_weights_add_up() -> None:
    tree = tree_of(fold(counted(*shop(8)), Folding()))
    for node, _ in tree.preorder():
        assert sum(child.weights[0] for child in node.children) <= node.weights[0]
        names = [tree.labels[child.label].text for child in node.children]
        assert names == sorted(names)
    assert tree.totals == (40,)


def test_surplus_nodes_are_gathered_and_counted() -> None:
    labels = [Label(f"n{n:03}", f"n{n:03}", FrameKind.RUBY) for n in range(200)]
    rows = {(0, n): (n + 1,) for n in range(1, 200)}
    tree = build(rows, labels, 1, max_nodes=50)
    nodes = [node for node, _ in tree.preorder()]
    gathered = [node for node in nodes if node.gathered]
    assert len(nodes) <= 52
    assert sum(node.gathered for node in gathered) == tree.narrow == 200 - 50
    assert sum(n.weights[0] for n in tree.root.children[0].children) == sum(
        weight for (weight,) in rows.values()
    )


def test_colours_are_stable_and_tell_kinds() -> None:
    one = Label("A#b", "A#b /x.rb:1", FrameKind.RUBY)
    assert colour(one) == colour(one._replace(text="A#b /y.rb:9"))
    kinds = {colour(one._replace(kind=kind)) for kind in FrameKind}
    assert len(kinds) == len(FrameKind)


def test_a_legend_has_the_kernel_where_it_occurs() -> None:
    one = Label("A#b", "A#b /x.rb:1", FrameKind.RUBY)
    kernel = Label("schedule_[k]", "schedule_[k]", FrameKind.KERNEL)
    without, entries = legend([one]), legend([one, kernel])
    assert [entry for entry in entries if entry not in without] == [
        ("kernel", kind_colour(FrameKind.KERNEL))
    ]
    assert len(entries) == len(without) + 1


# ----------------------------------------------------------- all the formats


def test_the_names_of_formats() -> None:
    assert list(FORMATS) == [
        "folded",
        "flamegraph",
        "speedscope",
        "pprof",
        "callgrind",
        "summary",
        "summary-by-line",
        "readable",
        "json",
    ]
    with pytest.raises(UsageError, match="unknown format: svg"):
        format_named("svg")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("unit", ["samples", "ns"])
def test_every_format_takes_nothing_and_anything(name: str, unit: str) -> None:
    wild = RubyThread(1, 2, 3, "\udc80;\x1b[2J<&\"'", is_main=True)
    frames = tuple(
        Frame(kind, "\udc80\udcff<&>]]>;\x00'\"", "\n", "\u202e/;\t", 2**31)
        for kind in FrameKind
    )
    one = sample("a", thread=wild, weight=2**62)._replace(stack=Stack(frames))
    for samples in ([], [one], [one._replace(stack=Stack(()))], list(shop(2))):
        counts = StackCounts(Statistics(unit=unit, rate=99.0)).add_all(samples)
        for kept in (None, samples):
            source = None if kept is None else kept.__iter__
            file = BytesIO()
            FORMATS[name].render(
                Profile(counts, Meta(command="\x1b]0;x\x07"), source),
                ReportOptions(Folding(True, True, True)),
                file,
            )
            data = file.getvalue()
            if name != "pprof":
                assert b"\x1b" not in data
                assert b"\x00" not in data
                data.decode()


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_samples_give_the_same_bytes(name: str) -> None:
    files = []
    for _ in range(2):
        file = BytesIO()
        counts = StackCounts(Statistics(rate=99.0)).add_all(shop(9))
        FORMATS[name].render(Profile(counts), ReportOptions(), file)
        files.append(file.getvalue())
    assert files[0] == files[1]


def test_threads_of_speedscope() -> None:
    samples = [
        sample("a@/x.rb:1", "c!b@/x.rb:1", "k!schedule_[k]"),
        sample("a@/x.rb:2", thread=OTHER_PROCESS),
        sample("a@/x.rb:2", thread=MAIN),
    ]
    profile = Profile(counted(*samples), samples=lambda: samples)
    document = json.loads(rendered("speedscope", profile))
    assert document["shared"]["frames"] == [
        {"name": "a", "file": "/x.rb"},
        {"name": "b", "file": "(C)"},
        {"name": "schedule_[k]", "file": "(kernel)"},
    ]
    assert [
        (p["name"], p["unit"], p["samples"], p["weights"], p["endValue"])
        for p in document["profiles"]
    ] == [
        ("[pid 4211] [main, tid 4211]", "none", [[0, 1, 2], [0]], [1, 1], 2),
        ("[pid 4300] [thread]", "none", [[0]], [1], 1),
    ]


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, b"\0"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (2**64 - 1, b"\xff" * 9 + b"\x01"),
        (-1, b"\xff" * 9 + b"\x01"),
    ],
)
def test_varints(number: int, data: bytes) -> None:
    assert varint(number) == data


def test_a_stack_of_the_makers() -> None:
    assert stack("c!A#b@/x.rb:3").frames == (
        Frame(FrameKind.C, "A#b", "b", "/x.rb", 3),
    )


def test_a_semicolon_separates_frames_of_folded_stacks_alone() -> None:
    thread = replace(WORKER, name="a;b")
    profile = Profile(counted(sample("C#m;n@/a;b.rb:1", thread=thread)))
    document = json.loads(rendered("speedscope", profile))
    assert document["profiles"][0]["name"] == "[a;b, tid 4213]"
    assert document["shared"]["frames"] == [{"name": "C#m;n", "file": "/a;b.rb"}]
    folded = list(folded_lines(profile.counts, Folding(threads=True)))
    assert folded == ["[a,b, tid 4213];C#m,n /a,b.rb 1"]
