"""An agent's memory that cannot be: its process is let go of, the others are traced."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from contextlib import closing

import pytest

from commands import Tracer
from processes import Target
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory_file import MemoryFile
from rbtrace_py.linux.process import Process

Trace = Callable[..., Tracer]
Start = Callable[..., Target]

STREAMS_AT = 128
"""Of the header: where the streams begin (docs/agent/memory.md)."""
TOO_MANY = 1 << 40
SAID = r"the agent published (\d+) records at once"
"""So many less those that were read before."""


def break_memory(pid: int) -> None:
    """Have the first stream say that it has more records than it can hold."""
    with Process(pid) as process, closing(MemoryFile(process)) as memory:
        (start,) = (
            each.start
            for each in mappings(process)
            if each.is_writable and memory.read(each.start, 8) == b"RBTRAGT1"
        )
        (offset,) = struct.unpack("<Q", memory.read(start + STREAMS_AT, 8))
        memory.write(start + offset, struct.pack("<Q", TOO_MANY))


def called(out: str) -> dict[int, list[str]]:
    """The methods that were called, by process."""
    found: dict[int, list[str]] = {}
    for line in out.splitlines():
        event = json.loads(line)
        if "method" in event:
            found.setdefault(event["pid"], []).append(event["method"])
    return found


def says(err: str, expected: str) -> bool:
    """Does it say so, once, with a number that is near?"""
    (number,) = re.findall(expected, " ".join(err.split()))
    return 0 <= TOO_MANY - int(number) < 100


@pytest.mark.parametrize("words", [(), ("--subprocesses",)], ids=["", "subprocesses"])
def test_calls_of_several(words: tuple[str, ...], start: Start, trace: Trace) -> None:
    broken, whole = start("methods/calls.rb"), start("methods/calls.rb")
    pids = f"{broken.pid},{whole.pid}"
    tracer = trace("calls", pids, "-m", "Tiny#", "--json", *words)
    broken.step("last")
    break_memory(broken.pid)
    for _ in range(3):
        whole.step("last")
    out, err, code = tracer.finish()
    assert called(out)[whole.pid] == 3 * ["Tiny#last"]
    assert says(err, f"rbtrace-py: process {broken.pid}: {SAID}")
    assert code == 1
    assert broken.step("last") == "done"


def test_of_a_child_it_is_a_note(start: Start, trace: Trace) -> None:
    target = start("methods/calls.rb")
    words = ("-m", "Tiny#", "--subprocesses")
    tracer = trace("calls", target.pid, *words)
    child = int(target.step("fork").split()[1])
    break_memory(child)
    target.step("last")
    out, err, code = tracer.finish()
    assert f"{target.pid}/{target.pid} Tiny#last" in out
    assert says(err, f"process {child}: tracing of it stops here: {SAID}")
    assert code == 0
