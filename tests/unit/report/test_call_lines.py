"""Lines of calls, from events put together by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from nested_calls import CallNesting
from rbtrace_py.aggregate.calls import CallEvent, ReportedCall
from rbtrace_py.model.calls import (
    NO_ROOM_METHOD,
    UNKNOWN_METHOD,
    CalledMethod,
    CallRecord,
    MethodKind,
)
from rbtrace_py.report.json.calls import call_document
from rbtrace_py.report.style import ASCII, PLAIN, Style
from rbtrace_py.report.terminal.calls import CallLines, CallsForm

ENTRY, RETURN, C_ENTRY, C_RETURN, LOST, GC_BEGIN, GC_END = range(1, 8)
STACK, PLACE, THREAD = 11, 12, 13
MS = 1_000_000


def method(name: str) -> CalledMethod:
    return CalledMethod(MethodKind.RUBY, "A", False, name)


METHODS = [
    NO_ROOM_METHOD,
    method("a"),
    method("b"),
    CalledMethod(MethodKind.GC, None, False, None),
    CalledMethod(MethodKind.C, "X\x1b[2J\u202e", True, "é\n"),
    UNKNOWN_METHOD,
]
TREE: list[tuple[int, CallRecord]] = [
    (0, (0, 1, 0, ENTRY, 0)),
    (0, (2 * MS, 2, 1, ENTRY, 0)),
    (0, (3 * MS, 2, 1, RETURN, 0)),
    (0, (5 * MS, 1, 0, RETURN, 0)),
]


def stack(stream: int, number: int, tid: int) -> list[tuple[int, CallRecord]]:
    return [
        (stream, (0, number, 0, STACK, 0)),
        (stream, (0xEC, tid, 0, PLACE, 0)),
        (stream, (0xABC, 0, 0, THREAD, 0)),
    ]


def test_values() -> None:
    """They are printed where a call begins, or on its only line, and never on its
    last one."""
    values = (("self", '"a\\n\x1b[1m…'), ("@b", "1\u202e"))
    nesting = CallNesting()
    made = CallLines(CallsForm(durations=False), PLAIN)
    shown = [
        line
        for s, record in TREE
        for event in nesting.feed(s, record)
        for line in made.lines(ReportedCall(1, event, METHODS[event.method], values))
    ]
    given = r"""(self="a\n\e[1m…, @b=1\u{202E})""".replace("\\\\", "\\")
    assert shown == [f"A#a{given}", f"  A#b{given}", "A#a", ""]
    (entered, returned) = (
        ReportedCall(1, event, METHODS[1], values) for event in _ends()
    )
    assert call_document(entered, {}) is None
    document = call_document(returned, {})
    assert document is not None
    assert document["values"] == dict(values)


def _ends(until: int = 5 * MS) -> list[CallEvent]:
    nesting = CallNesting()
    records: list[CallRecord] = [(0, 1, 0, ENTRY, 0), (until, 1, 0, RETURN, 0)]
    return [event for record in records for event in nesting.feed(0, record)]


def lines(
    records: Iterable[tuple[int, CallRecord]],
    form: CallsForm | None = None,
    style: Style = PLAIN,
) -> list[str]:
    nesting = CallNesting()
    made = CallLines(form or CallsForm(), style)
    events = [event for s, record in records for event in nesting.feed(s, record)]
    events += nesting.finish(9 * MS)
    found = []
    for event in events:
        found += made.lines(ReportedCall(4, event, METHODS[event.method]))
    return found + made.end()


def test_a_tree() -> None:
    assert lines(TREE) == ["A#a", "  A#b <1.00 ms>", "A#a <5.00 ms>", ""]


@pytest.mark.parametrize(
    ("cpu", "style", "scaled", "seconds"),
    [
        (None, PLAIN, "<1.24 ms>", "<0.001240>"),
        (78_900, PLAIN, "<1.24 ms, 78.9 µs on CPU>", "<0.001240 cpu 0.000079>"),
        (78_900, ASCII, "<1.24 ms, 78.9 us on CPU>", "<0.001240 cpu 0.000079>"),
        (0, PLAIN, "<1.24 ms, 0 ns on CPU>", "<0.001240 cpu 0.000000>"),
    ],
)
def test_durations(cpu: int | None, style: Style, scaled: str, seconds: str) -> None:
    """Times have a suitable unit; with --rbtrace-times, they are in seconds."""
    entry, event = _ends(1_240_000)
    event.cpu_ns = cpu
    for has_seconds, text in ((False, scaled), (True, seconds)):
        made = CallLines(CallsForm(rbtrace_times=has_seconds), style)
        assert made.lines(ReportedCall(1, entry, METHODS[1])) == []
        assert made.lines(ReportedCall(1, event, METHODS[1])) == [f"A#a {text}"]


def test_a_blank_line_only_once_something_was_nested() -> None:
    leaf = [(0, (0, 1, 0, ENTRY, 0)), (0, (1, 1, 0, RETURN, 0))]
    assert lines(leaf + leaf) == ["A#a <1 ns>"] * 2
    assert lines([*TREE, *leaf])[-2:] == ["A#a <1 ns>", ""]


def test_a_call_that_goes_on_at_the_end() -> None:
    assert lines(TREE[:3]) == ["A#a", "  A#b <1.00 ms>", ""]
    assert lines(TREE[:2]) == ["A#a", "  A#b", ""]


def test_a_loss_in_the_middle() -> None:
    lost = (0, (2 * MS, 1234, 1, LOST, 0))
    assert lines([TREE[0], lost, TREE[3]]) == [
        "A#a",
        "  *** 1,234 events lost",
        "A#a <5.00 ms>",
    ]
    assert "*** 1 event lost" in lines([(0, (0, 1, 0, LOST, 0))])


def test_garbage_collection() -> None:
    gc = [(0, (1 * MS, 3, 1, GC_BEGIN, 0)), (0, (3 * MS, 3, 1, GC_END, 0))]
    inside = [TREE[0], *gc, TREE[3]]
    expected = ["A#a", "  garbage_collect <2.00 ms>", "A#a <5.00 ms>"]
    assert lines(inside) == expected
    assert lines([gc[1]]) == ["garbage_collect <?>"]


def test_on_return() -> None:
    assert lines(TREE, CallsForm(on_return=True)) == [
        "  A#b <1.00 ms>",
        "A#a <5.00 ms>",
        "",
    ]


def test_two_threads() -> None:
    records = [*stack(0, 1, 71), *stack(1, 2, 72), *TREE]
    other = [(1, record) for _, record in TREE]
    assert lines([*records, *other])[:5] == [
        "A#a",
        "  A#b <1.00 ms>",
        *lines(TREE)[2:],
        "      72 A#a",
    ]
    assert lines([*records, *other], CallsForm(column=True))[0] == "      71 A#a"
    with_pid = lines(records, CallsForm(column=True, with_pid=True))
    assert with_pid[0] == "            4/71 A#a"


def test_a_collection_in_another_thread() -> None:
    """It names its thread, even if the thread has no other line."""
    records = [*stack(0, 1, 71), *stack(1, 2, 72), TREE[0]]
    records += [(1, (MS, 3, 0, GC_BEGIN, 0)), (1, (2 * MS, 3, 0, GC_END, 0))]
    assert lines([*records, TREE[3]]) == [
        "      72 garbage_collect <1.00 ms>",
        "      71 A#a <5.00 ms>",
    ]


def test_a_fiber_is_resumed_by_a_call() -> None:
    """The resuming call is printed before the fiber's calls, in the order of time."""
    records = [*stack(0, 1, 71), *stack(1, 2, 71), TREE[0]]
    records += [(1, (MS, 2, 0, ENTRY, 0)), (1, (2 * MS, 2, 0, RETURN, 0))]
    assert lines([*records, TREE[3]]) == [
        "      71 A#a",
        "    71.2 A#b <1.00 ms>",
        "      71 A#a <5.00 ms>",
    ]


def test_of_several_processes_each_line_has_its_pid() -> None:
    form = CallsForm(with_pid=True)
    assert lines([*stack(0, 1, 71), *TREE], form)[0] == "            4/71 A#a"


def test_a_program_that_executes_another() -> None:
    """Its one thread is the same one; the agents count their stacks by themselves."""
    made = CallLines(CallsForm(), PLAIN)
    shown = []
    for number in (2, 1):
        nesting = CallNesting()
        for s, record in [*stack(0, number, 71), *TREE]:
            for event in nesting.feed(s, record):
                shown += made.lines(ReportedCall(4, event, METHODS[event.method]))
    assert shown == lines(TREE) * 2


def test_by_thread() -> None:
    """A tree is printed as one piece, whatever other threads do meanwhile."""
    mixed = [*stack(0, 1, 71), *stack(1, 2, 72)]
    for _, record in TREE:
        mixed += [(0, record), (1, record)]
    form = CallsForm(by_thread=True, names={(4, 71): "wo\x1brker"})
    tree = lines(TREE)
    assert lines(mixed, form) == [
        "--- thread 71 wo\\erker",
        *tree,
        "--- thread 72",
        *tree,
    ]
    assert lines(mixed[:-2], form)[-1] == ""


def test_by_thread_in_containers() -> None:
    """No thread gets the name of another process's thread. Truncated output also
    names its thread."""
    nesting = CallNesting()
    records = [*stack(0, 1, 71), (0, (0, 0, 0, ENTRY, 0))]
    events = [event for s, record in records for event in nesting.feed(s, record)]
    names = {(4, 71): "its own", (5, 71): "other"}
    made = CallLines(CallsForm(by_thread=True, with_pid=True, names=names), PLAIN)
    assert [made.lines(ReportedCall(4, event, METHODS[1])) for event in events] == [[]]
    assert made.end() == ["--- process 4 thread 71 its own", "A#a"]


def test_a_call_without_a_return_does_not_count_for_the_limit() -> None:
    nesting = CallNesting()
    made = CallLines(CallsForm(), PLAIN)
    for s, record in [*TREE, (0, (6 * MS, 1, 0, ENTRY, 0))]:
        for event in nesting.feed(s, record):
            made.lines(ReportedCall(4, event, METHODS[event.method]))
    assert made.end(has_all=True) == []
    assert made.end() == ["A#a"]


def test_deep_calls() -> None:
    deep = [(0, (0, 1, depth, ENTRY, 0)) for depth in range(3000)]
    found = lines(deep)
    assert found[10] == " " * 20 + "A#a"
    assert found[100] == " " * 200 + "A#a"
    # Deeper ones say how deep they are: nothing is lost, and a recording of half a
    # megabyte does not become a hundred times as much text.
    assert found[101:] == [*(f"[{depth}] A#a" for depth in range(101, 3000)), ""]
    assert lines(deep, CallsForm(indent=0))[2999] == "A#a"


def test_names_are_escaped() -> None:
    call = [(0, (0, 4, 0, C_ENTRY, 0)), (0, (1, 4, 0, C_RETURN, 0))]
    assert lines(call) == ["X\\e[2J\\u{202E}.é\\n <1 ns>"]
    assert lines(call, style=ASCII)[0].isascii()


def test_methods_without_names() -> None:
    for number, text in ((0, "(no room)"), (5, "(unknown)")):
        call = [(0, (0, number, 0, ENTRY, 0)), (0, (1, number, 0, RETURN, 0))]
        assert lines(call) == [f"{text} <1 ns>"]


def test_a_return_of_an_earlier_call() -> None:
    orphan = [(0, (5, 1, 0, RETURN, 1))]
    assert lines(orphan) == []
    (event,) = CallNesting().feed(*orphan[0])
    assert call_document(ReportedCall(4, event, METHODS[1]), {}) is None


def test_hostile_times() -> None:
    """Every time that an agent may send has a time of day."""
    far = (1 << 63) - 1
    records = [(0, (0, 1, 0, ENTRY, 0)), (0, (far, 1, 0, RETURN, 0))]
    (line,) = lines(records, CallsForm(times=True))
    assert line.endswith("A#a <9,223,372,037 s>")
    (line,) = lines(records, CallsForm(times=True, rbtrace_times=True))
    assert line.endswith(f"A#a <{far / 1e9:.6f}>")
