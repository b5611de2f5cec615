"""The lists of probes and of what doctor found."""

from __future__ import annotations

from typing import NamedTuple

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
from rbtrace_py.report.style import ASCII, PLAIN
from rbtrace_py.report.terminal.doctor import doctor_lines
from rbtrace_py.report.terminal.probes import probe_lines
from rbtrace_py.report.text import width

IMAGE = Binary(1, 2, "/memfd:rbtrace (deleted)", True)
RUBY = Binary(1, 3, "/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1.2")
SITE = Site(0, 0, 0, ())
ID = Operand("id", OperandType.INTEGER)
SKU = Operand("sku", OperandType.STRING)
STATUS = Operand("status", OperandType.SYMBOL)
DURATION = Operand("duration_ns", OperandType.INTEGER, OperandRole.DURATION)
OUTCOME = Operand("outcome", OperandType.INTEGER, OperandRole.OUTCOME)
BEGIN = Probe(
    "shop", "checkout__begin", IMAGE, (SITE,), (ID, SKU), ProbeRole.SPAN_BEGIN
)
END = Probe(
    "shop",
    "checkout__end",
    IMAGE,
    (SITE,),
    (DURATION, OUTCOME, ID, SKU, STATUS),
    ProbeRole.SPAN_END,
)
MARK = Probe("ruby", "gc__mark__begin", RUBY, (SITE,) * 3)
ARRAY = Probe(
    "ruby",
    "array__create",
    RUBY,
    (SITE,) * 1200,
    tuple(Operand(f"arg{number}") for number in range(12)),
)
EVIL = Probe("evil\x1b[2J", "a\u202eb", IMAGE, (SITE,), (Operand("x\ny"),))

LISTED = [
    Listed(END, True),
    Listed(BEGIN, False),
    Listed(MARK, False),
    Listed(ARRAY, None),
    Listed(EVIL, False),
]
EXPECTED = r"""
evil\e[2J  /memfd:rbtrace (deleted)
    a\u{202E}b(x\ny: u64)                                                 1 site

ruby  /usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1.2
  ? array__create(arg0: u64, arg1: u64, arg2: u64, arg3: u64,        1,200 sites
            arg4: u64, arg5: u64, arg6: u64, arg7: u64, arg8: u64,
            arg9: u64, arg10: u64, arg11: u64)
    gc__mark__begin                                                      3 sites

shop  /memfd:rbtrace (deleted)
    checkout__begin(id: Integer, sku: String)                             1 site
  ● checkout__end(duration_ns: Integer, outcome: Integer, id: Integer,    1 site
            sku: String, status: Symbol)

5 probes, 1 traced now (●), of 1 that could not be read (?)
"""


class Check(NamedTuple):
    status: str
    name: str
    text: str
    advice: str = ""


CHECKS = [
    Check("ok", "BPF", "programs can be loaded"),
    Check(
        "warn",
        "uprobe_multi",
        "this kernel (5.10) does not have it: perf uprobes are used instead, and "
        "detaching from many probes takes a while",
        "use Linux 6.6 or later",
    ),
    Check(
        "fail",
        "tracefs",
        "not mounted",
        "mount -t tracefs tracefs /sys/kernel/tracing",
    ),
]


def test_probes() -> None:
    assert "\n".join(probe_lines(LISTED, PLAIN)) == EXPECTED.strip("\n")


def test_probes_in_ascii() -> None:
    lines = "\n".join(probe_lines(LISTED, ASCII))
    assert lines == EXPECTED.strip("\n").replace("●", "*")


def test_probes_of_several_processes() -> None:
    listed = [Listed(END, False, (7, 8, 9)), Listed(BEGIN, True, (8,))]
    assert (
        "\n".join(probe_lines(listed, PLAIN))
        == """\
shop  /memfd:rbtrace (deleted)
  ● checkout__begin(id: Integer, sku: String)                1 site in 1 process
    checkout__end(duration_ns: Integer, outcome: Integer,  1 site in 3 processes
            id: Integer, sku: String, status: Symbol)

2 probes in 3 processes, 1 traced now (●)"""
    )


def test_no_probes() -> None:
    assert list(probe_lines([], PLAIN)) == ["no probes"]


def test_one_probe() -> None:
    assert list(probe_lines([Listed(MARK, False)], PLAIN))[-1] == "1 probe"


def test_long_names_are_cut() -> None:
    operands = tuple(Operand("o" * 255) for _ in range(3))
    probe = Probe("p" * 200, "n" * 200, Binary(1, 1, "f" * 300), (SITE,), operands)
    for line in probe_lines([Listed(probe, True)], PLAIN):
        assert width(line) <= 80


def test_doctor() -> None:
    assert (
        "\n".join(doctor_lines(CHECKS, PLAIN))
        == """\
✓ BPF           programs can be loaded
! uprobe_multi  this kernel (5.10) does not have it: perf uprobes are used
                instead, and detaching from many probes takes a while
                → use Linux 6.6 or later
✗ tracefs       not mounted
                → mount -t tracefs tracefs /sys/kernel/tracing"""
    )


def test_doctor_in_ascii() -> None:
    assert (
        "\n".join(doctor_lines(CHECKS, ASCII))
        == """\
ok BPF           programs can be loaded
!  uprobe_multi  this kernel (5.10) does not have it: perf uprobes are used
                 instead, and detaching from many probes takes a while
                 -> use Linux 6.6 or later
X  tracefs       not mounted
                 -> mount -t tracefs tracefs /sys/kernel/tracing"""
    )


def test_nothing_to_check() -> None:
    assert list(doctor_lines([], PLAIN)) == []
