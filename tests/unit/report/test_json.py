"""JSON documents are as docs/formats shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from rbtrace_py.aggregate.histogram import FloatHistogram, Histogram
from rbtrace_py.aggregate.results import Group, Result
from rbtrace_py.aggregate.slow.spans import EndedSpan, Exemplar, SlowPart
from rbtrace_py.model.events import UNREADABLE, Event
from rbtrace_py.model.hit_cost import HitCost
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.probes import (
    Binary,
    Operand,
    OperandRole,
    OperandType,
    Probe,
    ProbeRole,
    Site,
)
from rbtrace_py.report.json.results import document
from rbtrace_py.report.json.serializer import Document, dumps
from rbtrace_py.report.json.setup import doctor_document, probes_document
from rbtrace_py.report.json.trace import event_document, trace_end_document
from rbtrace_py.report.terminal.notes import _SENTENCES, LOSSES

PAGES = Path(__file__).parents[3] / "docs" / "formats"
TEXT = "\n".join(
    (PAGES / f"{name}.md").read_text("utf-8")
    for name in ("latency", "trace", "setup", "hdrhistogram")
)
HERE = ("latency", "values", "count", "trace", "trace-end", "probes", "doctor")
"""Schemas that are tested here; others are where their reports are."""

EXAMPLES = [
    example
    for example in map(json.loads, re.findall(r"```json\n(.*?)```", TEXT, re.S))
    if example["schema"].removeprefix("rbtrace-py/") in HERE
]
IMAGE = Binary(1, 2, "/memfd:rbtrace (deleted)", True)
ID = Operand("id", OperandType.INTEGER, signed=True)
SKU = Operand("sku", OperandType.STRING)
NOTE = Operand("note", OperandType.STRING)
CHECKOUT = Probe("shop", "checkout", IMAGE, (), (ID, SKU, NOTE))
BEGIN = Probe(
    "shop",
    "checkout__begin",
    IMAGE,
    (Site(0, 0, 0, ()),),
    (ID,),
    ProbeRole.SPAN_BEGIN,
)
START = 1_700_000_000 * 10**9
EVENT = Event(
    1_700_000_000_123_456_789,
    4211,
    4213,
    "puma 001",
    CHECKOUT,
    (42, "tea", UNREADABLE),
    (False, True, False),
)
END = Probe(
    "shop",
    "checkout__end",
    IMAGE,
    (),
    (Operand("duration_ns", role=OperandRole.DURATION), ID, SKU),
    ProbeRole.SPAN_END,
)
PARTS = {"sleep": 80_000_000, "on CPU": 100_000}
ENDED = Event(START + 2 * 10**9, 4211, 4213, "puma 001", END, (80_100_000, 42, "tea"))
SLOW = SlowPart(
    50_000_000,
    1,
    80_100_000,
    PARTS,
    (Exemplar(EndedSpan("shop:checkout", ENDED, 80_100_000, 0, 0), PARTS),),
)


class Check(NamedTuple):
    status: str
    name: str
    text: str
    advice: str = ""


def result(command: str, *groups: Group, **rest: object) -> Result:
    ended = START + 3 * 10**9
    series = ("shop:checkout",)
    return Result(command, (4211,), series, START, ended, groups, **rest)  # type: ignore[arg-type]


def latency(*values: int, **rest: object) -> Group:
    total = sum(values)
    histogram = Histogram.from_values(values)
    rest = {"key": None, **rest}
    return Group(
        "shop:checkout",
        count=len(values),
        total=total,
        distribution=histogram,
        **rest,  # type: ignore[arg-type]
    )


DOCUMENTS = [
    document(
        result(
            "latency",
            latency(2_000_000, 3_000_000, key="tea"),
            latency(700, is_other=True),
            counters={"raised": 1, "running_at_attach": 0},
            by="sku",
            unit="ns",
        )
    ),
    document(
        result(
            "values",
            Group("shop:checkout", "tea", 7),
            counters={"unreadable": 1},
            by="sku",
            operand="sku",
        )
    ),
    document(result("count", Group("shop:checkout", None, 42))),
    document(result("latency", unit="ns", slow=SLOW)),
    event_document(EVENT),
    trace_end_document(
        1234, {"filtered": 5, "lost": 2}, HitCost(1241, 1_489_200, 10_000_412_233)
    ),
    probes_document([4211], [Listed(BEGIN, False, (4211,))]),
    doctor_document(
        4211,
        [
            Check(
                "fail",
                "tracefs",
                "not mounted",
                "mount -t tracefs tracefs /sys/kernel/tracing",
            )
        ],
    ),
]


def ordered(found: object) -> object:
    """Return dicts as pairs, because the order of keys is guaranteed."""
    if isinstance(found, dict):
        return [(name, ordered(value)) for name, value in found.items()]
    return [ordered(each) for each in found] if isinstance(found, list) else found


@pytest.mark.parametrize("place", range(len(DOCUMENTS)))
def test_documents_are_those_of_the_page(place: int) -> None:
    written = json.loads(dumps(DOCUMENTS[place]))
    assert ordered(written) == ordered(EXAMPLES[place])
    assert list(written)[:2] == ["schema", "version"]


def test_the_page_has_an_example_of_each() -> None:
    assert len(EXAMPLES) == len(DOCUMENTS)


def test_the_page_names_all_keys() -> None:
    names = set(re.findall(r"`([a-z_]+)`", TEXT))
    for found in DOCUMENTS[:2]:
        assert set(found) - {"schema", "version"} <= names | {"schema", "version"}
    groups = EXAMPLES[0]["groups"]
    assert set(groups[0]) <= names


def test_the_page_has_all_counters() -> None:
    table = (PAGES / "latency.md").read_text("utf-8").split("## Counters")[1]
    rows = re.findall(r"^\| `(\w+)` +\| (.*)", table, re.M)
    in_page = {name: text.startswith("*loss*") for name, text in rows}
    apart = ("nan", "inf", "-inf")
    sentences = {n: n in LOSSES for n in _SENTENCES if n not in apart}
    # A note says how methods were hooked.
    assert in_page == {**sentences, "targeted": False}


def test_the_page_shows_a_real_log_line() -> None:
    from hdrh.histogram import HdrHistogram

    (payload,) = re.findall(r"^0\.000,1\.000,123\.470,(HIST\S+)$", TEXT, re.M)
    assert HdrHistogram.decode(payload).get_max_value() == 123_469_823


def test_lines_are_ascii_and_whole() -> None:
    found: Document = {
        "a": "é\n\x1b\u202e",
        "b": [b"\xff\xe9".decode("utf-8", "surrogateescape")],
        b"\xfe".decode("utf-8", "surrogateescape"): 2**64,
        "c": {"d": [float("nan"), float("inf"), float("-inf"), 0.5, None, True]},
    }
    line = dumps(found)
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line) == {
        "a": "é\n\x1b\u202e",
        "b": ["\ufffd\ufffd"],
        "\ufffd": 2**64,
        "c": {"d": ["NaN", "Infinity", "-Infinity", 0.5, None, True]},
    }


def test_a_second_argument_of_one_name() -> None:
    probe = Probe("a", "b", IMAGE, (), (ID, ID, ID))
    event = Event(0, 1, 1, "c", probe, (1, 2, 3), (False,) * 3)
    assert event_document(event)["arguments"] == {"id": 1, "id#2": 2, "id#3": 3}


def test_outcomes_are_named_beside_their_numbers() -> None:
    outcome = OperandRole.OUTCOME
    groups = [Group("s", key, 1, key_role=outcome) for key in (1, 7)]
    named, other = document(result("count", *groups, by="outcome"))["groups"]  # type: ignore[misc]
    assert (named["key"], named["key_name"]) == (1, "raised")
    assert (other["key"], "key_name" in other) == (7, False)


def test_floats_in_no_bucket() -> None:
    values = FloatHistogram.from_values([float("nan"), 0.5, float("inf")])
    groups = document(result("values", Group("s", None, 3, 0, values)))["groups"]
    assert isinstance(groups, list)
    assert groups[0]["apart"] == {"inf": 1, "nan": 1}
    assert groups[0]["buckets"] == [[0.5, 0.5004882812499999, 1]]


def test_a_traced_state_that_is_unknown() -> None:
    (listed,) = json.loads(dumps(probes_document([1], [Listed(CHECKOUT, None)])))[
        "probes"
    ]
    assert listed["traced"] is None
    assert listed["span"] is None
