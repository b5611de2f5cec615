"""A dump as lines: their limits, and the parts left out of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rbtrace_py.model.dump import Dump, DumpedFiber, DumpedThread
from rbtrace_py.model.stacks import SampleFlags, ThreadState
from rbtrace_py.report.json.dump import dump_document
from rbtrace_py.report.style import PLAIN, Style
from rbtrace_py.report.terminal.dump import dump_lines
from sample_makers import MAIN, OTHER_PROCESS, WORKER, stack

PATH = f"/srv/{'shop/' * 12}till.rb"


def dumped(*threads: DumpedThread, command: str = "ruby shop.rb") -> Dump:
    return Dump(4211, command, "3.1.2", threads, notes=("a note",))


def test_every_part_of_a_dump() -> None:
    main = DumpedThread(
        MAIN, ThreadState.RUNNING, True, "R", stack("<main>@/a.rb:2", "c!f@/a.rb:2")
    )
    worker = DumpedThread(
        WORKER,
        ThreadState.WAITING,
        False,
        "S",
        stack("g@/a.rb"),
        SampleFlags.TRIMMED | SampleFlags.TRUNCATED,
        fibers=(DumpedFiber(0x7F00, stack()), DumpedFiber(0x7F10, None)),
    )
    other = DumpedThread(OTHER_PROCESS, ThreadState.UNKNOWN, None, "T", None)
    assert list(dump_lines(dumped(main, worker, other), PLAIN)) == [
        "Ruby 3.1.2, process 4211: ruby shop.rb",
        "3 threads, 2 could not be read",
        "(a note)",
        "",
        '"main" tid 4211, running, on CPU',
        "    f  /a.rb:2 (C)",
        "    <main>  /a.rb:2",
        "",
        '"worker 1" tid 4213, waiting for the GVL',
        "    (newest frames changed while read)",
        "    g  /a.rb:?",
        "    (oldest frames missing)",
        "  suspended fiber 0x7f00",
        "    (no Ruby frames)",
        "  suspended fiber 0x7f10",
        "    (its stack could not be read)",
        "",
        "thread no kernel thread known, ractor 2, stopped",
        "    (its stack could not be read)",
    ]


def test_sleeping_threads_with_equal_stacks() -> None:
    threads = [
        DumpedThread(replace(WORKER, tid=tid), state, False, "S", stack(frame))
        for tid, state, frame in (
            (1, ThreadState.SLEEPING, "f@/a.rb:2"),
            (2, ThreadState.RUNNING, "f@/a.rb:2"),
            (3, ThreadState.SLEEPING, "f@/a.rb:2"),
            (4, ThreadState.SLEEPING, "f@/a.rb:3"),
            (5, ThreadState.RUNNING, "f@/a.rb:2"),
            (6, ThreadState.SLEEPING, "f@/a.rb:2"),
        )
    ]
    lines = list(dump_lines(dumped(*threads), PLAIN))
    assert lines[4:8] == [
        '"worker 1" tid 1, sleeping',
        '  and 2 more threads: "worker 1" tid 3, "worker 1" tid 6',
        "    f  /a.rb:2",
        "",
    ]
    assert sum(" tid " in line for line in lines) == 1 + 4
    lines = list(dump_lines(dumped(*threads), PLAIN, idle=True))
    assert sum(" tid " in line for line in lines) == 6


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (PLAIN, ["    Till#pay", f"        …{PATH[-69:]}:7"]),
        (Style(width=40), ["    Till#pay", f"        …{PATH[-29:]}:7"]),
        (Style(spare=20), [f"    Till#pay  {PATH}:7"]),
        (Style(is_whole=True), [f"    Till#pay  {PATH}:7"]),
    ],
)
def test_a_path_takes_what_room_there_is(style: Style, expected: list[str]) -> None:
    frames = stack(f"Till#pay@{PATH}:7")
    thread = DumpedThread(MAIN, ThreadState.SLEEPING, False, "S", frames)
    assert list(dump_lines(dumped(thread), style))[-len(expected) :] == expected


def test_names_are_whole_where_no_terminal_shows_them() -> None:
    name, words = f"Till#{'pay' * 40}", "worker" * 20
    frames = stack(f"{name}@{PATH}:7")
    named = DumpedThread(
        replace(MAIN, name=words), ThreadState.SLEEPING, False, "S", frames
    )
    text = "\n".join(dump_lines(dumped(named, command=PATH), Style(is_whole=True)))
    assert text.endswith(f'"{words}" tid 4211, sleeping\n    {name}  {PATH}:7')
    assert PATH in text.splitlines()[1]


GEM = "/usr/share/rubygems-integration/all/gems/puma-5.6.5/lib/puma/server.rb"


def test_paths_are_relative_to_the_application_and_of_a_gem_short() -> None:
    frames = stack(
        "a@/srv/shop/app/till.rb:7", f"b@{GEM}:38", "c@/srv/shopping.rb:1", "d@-e:2"
    )
    thread = DumpedThread(MAIN, ThreadState.SLEEPING, False, "S", frames)
    dump = replace(dumped(thread), folder="/srv/shop")
    assert list(dump_lines(dump, PLAIN))[-4:] == [
        "    d  -e:2",
        "    c  /srv/shopping.rb:1",
        "    b  puma-5.6.5 lib/puma/server.rb:38",
        "    a  app/till.rb:7",
    ]
    document = dump_document([dump])
    frame = document["processes"][0]["threads"][0]["frames"][-2]
    assert frame["path"] == GEM
