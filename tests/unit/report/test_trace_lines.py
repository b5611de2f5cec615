"""Events printed one per line, and templates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rbtrace_py.errors import UsageError
from rbtrace_py.model.events import UNREADABLE, Event, RaiseEvent
from rbtrace_py.model.probes import (
    Binary,
    Operand,
    OperandRole,
    OperandType,
    Probe,
    ProbeRole,
    Site,
)
from rbtrace_py.report.style import ASCII, PLAIN
from rbtrace_py.report.terminal.events import Template, backtrace_lines, event_line

IMAGE = Binary(1, 2, "/memfd:rbtrace (deleted)", True)
SITE = Site(0, 0, 0, ())
CHECKOUT = Probe(
    "shop",
    "checkout",
    IMAGE,
    (SITE,),
    (
        Operand("id", OperandType.INTEGER),
        Operand("sku", OperandType.STRING),
        Operand("status", OperandType.SYMBOL),
        Operand("ratio", OperandType.FLOAT),
        Operand("ok", OperandType.BOOL),
    ),
)
PAY = Probe(
    "shop",
    "pay__end",
    IMAGE,
    (SITE,),
    (
        Operand("duration_ns", OperandType.INTEGER, OperandRole.DURATION),
        Operand("outcome", OperandType.INTEGER, OperandRole.OUTCOME),
        Operand("id", OperandType.INTEGER),
    ),
    ProbeRole.SPAN_END,
)
NO_CUTS = (False,) * 5
EVENT = Event(
    1_700_000_000_123_456_789,
    4211,
    4213,
    "puma 001",
    CHECKOUT,
    (42, "tea", "paid", 0.1, True),
    NO_CUTS,
)
PAID = replace(EVENT, probe=PAY, values=(1_234_567, 1, 7), truncated=NO_CUTS[:3])


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_line() -> None:
    assert event_line(EVENT, PLAIN) == (
        "22:13:20.123456    4213 shop:checkout "
        'id: 42, sku: "tea", status: :paid, ratio: 0.1, ok: true'
    )


def test_line_with_its_process() -> None:
    assert event_line(EVENT, PLAIN, with_pid=True).startswith(
        "22:13:20.123456       4211/4213 shop:checkout id: 42"
    )


def test_line_of_a_span() -> None:
    assert event_line(PAID, PLAIN) == (
        "22:13:20.123456    4213 shop:pay__end "
        "duration: 1.23 ms, outcome: raised, id: 7"
    )
    assert event_line(PAID, ASCII, "us") == (
        "22:13:20.123456    4213 shop:pay__end "
        "duration: 1,234.6 us, outcome: raised, id: 7"
    )
    running = replace(PAID, values=(-1, 0, -7))
    assert event_line(running, PLAIN).endswith(
        "duration: untraced, outcome: returned, id: -7"
    )
    odd = replace(PAID, values=(5, 9, None))
    assert event_line(odd, PLAIN).endswith("duration: 5 ns, outcome: 9, id: nil")


def test_integers_named_ns_are_times() -> None:
    """Filters use the same units: ``queued > 25ms``."""
    queued = Operand("queued_ns", OperandType.INTEGER)
    probe = replace(
        CHECKOUT, operands=(queued, replace(queued, type=OperandType.FLOAT))
    )
    event = replace(EVENT, probe=probe, values=(25_263_528, 2.5), truncated=NO_CUTS[:2])
    assert event_line(event, PLAIN).endswith("queued: 25.3 ms, queued_ns: 2.5")
    assert event_line(event, PLAIN, "us").endswith(
        "queued: 25,263.5 µs, queued_ns: 2.5"
    )
    least = replace(event, values=(-1, 0.5))
    assert event_line(least, PLAIN).endswith("queued: -1 ns, queued_ns: 0.5")


def test_line_of_nils() -> None:
    nils = replace(EVENT, values=(None,) * 5)
    assert event_line(nils, PLAIN).endswith(
        "id: nil, sku: nil, status: nil, ratio: nil, ok: nil"
    )


def test_line_of_hostile_texts() -> None:
    values = (1, '"\x1b[2J\n#{x}\udcff', "a b\u202e", float("nan"), False)
    cuts = (False, True, False, False, False)
    assert event_line(replace(EVENT, values=values, truncated=cuts), PLAIN).endswith(
        r'id: 1, sku: "\"\e[2J\n\#{x}\xFF"…, status: :"a b\u{202E}", '
        "ratio: NaN, ok: false"
    )


def test_line_of_what_could_not_be_read() -> None:
    values = (1, UNREADABLE, UNREADABLE, 1e300, True)
    assert event_line(replace(EVENT, values=values), PLAIN).endswith(
        "id: 1, sku: (unreadable), status: (unreadable), ratio: 1e+300, ok: true"
    )


def test_line_without_arguments() -> None:
    probe = replace(CHECKOUT, operands=())
    bare = replace(EVENT, probe=probe, values=(), truncated=())
    assert event_line(bare, PLAIN) == "22:13:20.123456    4213 shop:checkout"


def test_template() -> None:
    template = Template(
        "{time} {pid}/{tid} {comm} {provider} {probe} {{{id}}} {sku} | {arguments}",
        [CHECKOUT],
    )
    assert template.line(EVENT, PLAIN) == (
        '22:13:20.123456 4211/4213 puma 001 shop shop:checkout {42} "tea" | '
        'id: 42, sku: "tea", status: :paid, ratio: 0.1, ok: true'
    )


def test_template_over_several_probes() -> None:
    template = Template("{id} {sku} {duration_ns}", [CHECKOUT, PAY])
    assert template.line(EVENT, PLAIN) == '42 "tea" -'
    assert template.line(PAID, PLAIN) == "7 - 1.23 ms"


def test_an_operand_goes_before_a_field() -> None:
    probe = replace(CHECKOUT, operands=(Operand("pid", OperandType.INTEGER),))
    event = replace(EVENT, probe=probe, values=(7,), truncated=(False,))
    assert Template("{pid}", [probe]).line(event, PLAIN) == "7"


def test_hostile_comm_is_escaped() -> None:
    event = replace(EVENT, comm="a\x1b[m\n")
    assert Template("{comm}", []).line(event, PLAIN) == r"a\e[m\n"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "{size}",
            "unknown field in the template: 'size'",
            "Use one of time, pid, tid, comm, probe, provider, arguments, "
            "id, ok, ratio, sku, status",
        ),
        ("{id.real}", "unknown field in the template: 'id.real'", None),
        ("{id!r}", "unknown field in the template: 'id!r'", None),
        ("{}", "unknown field in the template: ''", None),
        (
            "{id",
            "unmatched '{' in the template",
            "Write {{ for '{', and names as {name}",
        ),
        ("id}", "unmatched '}' in the template", None),
    ],
)
def test_wrong_template(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        Template(text, [CHECKOUT])
    assert str(caught.value) == message
    assert hint is None or caught.value.hint == hint


def test_files_of_gems_are_short_for_people() -> None:
    path = "/usr/share/gems/actionpack-6.1.7.10/lib/static.rb"
    operands = (
        Operand("file", OperandType.STRING),
        Operand("line", OperandType.INTEGER),
    )
    probe = Probe("rbtrace", "raise", Binary(0, 0, ""), (), operands)
    trace = (f"{path}:140:in `stat'", "/srv/app.rb:1:in `<main>'")
    event = RaiseEvent(0, 1, 1, "", probe, (path, 140), (False, False), trace)
    line = event_line(event, PLAIN)
    assert line.endswith('file: "actionpack-6.1.7.10 lib/static.rb", line: 140')
    assert list(backtrace_lines(event, PLAIN)) == [
        "    actionpack-6.1.7.10 lib/static.rb:140:in `stat'",
        "    /srv/app.rb:1:in `<main>'",
    ]
    # A template is for programs.
    assert Template("{file}", [probe]).line(event, PLAIN) == f'"{path}"'
