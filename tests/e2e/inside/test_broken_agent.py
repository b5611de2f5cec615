"""Invalid agent memory: its process is released, and the others stay traced."""

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
"""Header field: offset of the streams (docs/agent/memory.md)."""
TOO_MANY = 1 << 40
SAID = r"the agent published (\d+) records at once"
"""The number is TOO_MANY minus the records that were read before."""


def break_memory(pid: int) -> None:
    """Make the first stream claim more records than it can hold."""
    with Process(pid) as process, closing(MemoryFile(process)) as memory:
        (start,) = (
            each.start
            for each in mappings(process)
            if each.is_writable and memory.read(each.start, 8) == b"RBTRAGT1"
        )
        (offset,) = struct.unpack("<Q", memory.read(start + STREAMS_AT, 8))
        memory.write(start + offset, struct.pack("<Q", TOO_MANY))


def called(out: str) -> dict[int, list[str]]:
    """Return the called methods by process."""
    found: dict[int, list[str]] = {}
    for line in out.splitlines():
        event = json.loads(line)
        if "method" in event:
            found.setdefault(event["pid"], []).append(event["method"])
    return found


def says(err: str, expected: str) -> bool:
    """Return whether the message appears once, with a number close to the expected
    one."""
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


def test_a_broken_agent_in_a_child_is_a_note(start: Start, trace: Trace) -> None:
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
