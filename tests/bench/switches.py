"""Cost to all programs of tracing a process's context switches.

The BPF program runs at each switch of the whole machine. The benchmark times a pair of
threads that only switch: untraced, while other processes are traced, and while the pair
itself is traced. For comparison, it prints the kernel's count of the program's time,
minus the time of an empty program, because the kernel also counts its counting.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from table import Ratio, Row, interleaved, ns

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.attach import RETURN_0
from rbtrace_py.bpf.context_switches import ContextSwitches
from rbtrace_py.bpf.program import run_time_of
from rbtrace_py.bpf.run_statistics import RunStatistics
from rbtrace_py.linux.process import Process
from targets import PARTS, Target

TURNS = 5000
"""Switches there and back: the ring can hold six times as many."""
NOBODY, OTHERS, OURS = "even after tracing ends", "others are watched", "it is watched"

PAIR = """
import os, sys, time
there, back = os.pipe(), os.pipe()
print("ready", flush=True)
line = sys.stdin.readline()
child = os.fork()
if not child:
    os.close(there[1])
    while os.read(there[0], 1): os.write(back[1], b"x")
    os._exit(0)
print(child, flush=True)
for line in sys.stdin:
    start = time.perf_counter_ns()
    for _ in range(int(line)):
        os.write(there[1], b"x")
        os.read(back[0], 1)
    print((time.perf_counter_ns() - start) / int(line) / 2, flush=True)
"""
"""A pair on one CPU: each byte there and back is a wake-up and a switch."""


def cost(rounds: int) -> list[Row]:
    pair = Target(sys.executable, "-c", PAIR)
    stranger = Target(sys.executable, "-c", PAIR)
    try:
        both = (pair.pid, int(pair.ask("fork")))

        def switch(*watched: int) -> float:
            with _watching(*watched):
                return float(pair.ask(str(TURNS)))

        found = interleaved(
            {
                NOBODY: switch,
                OTHERS: lambda: switch(stranger.pid),
                OURS: lambda: switch(*both),
            },
            rounds,
        )
        rows = [Row(f"a wake-up and a switch, {NOBODY}", ns(median(found[NOBODY])))]
        for name in (OTHERS, OURS):
            ratio = Ratio.of(found[name], found[NOBODY])
            more = min(found[name]) - min(found[NOBODY])
            text = f"{ns(median(found[name]))}, best {more:+,.0f} ns"
            rows.append(Row(name, text, NOBODY, ratio))
        for name, pids in ((OTHERS, (stranger.pid,)), (OURS, both)):
            for function, time in _own(pair, pids).items():
                what = f"{function}, {name}"
                rows.append(Row(what, ns(time), "less a program that does nothing"))
        return rows
    finally:
        pair.close()
        stranger.close()


@contextmanager
def _watching(*pids: int) -> Iterator[ContextSwitches | None]:
    if not pids:
        yield None
        return
    with ContextSwitches() as switches:
        for pid in pids:
            with Process(pid) as process:
                switches.watch(process)
        yield switches


def _own(pair: Target, pids: tuple[int, ...]) -> dict[str, float]:
    """Return the nanoseconds per run of each of the two programs, on the whole
    machine."""
    with RunStatistics(), _watching(*pids) as switches, _empty() as empty:
        assert switches is not None
        for _ in range(PARTS):
            pair.ask(str(TURNS))
            switches.take()
        nothing = _time_a_run(empty)
        return {
            function: _time_a_run(fd) - nothing
            for (function, _, _), fd in switches._program._fds.items()
        }


@contextmanager
def _empty() -> Iterator[int]:
    """Return a program that returns at once, attached at the same place."""
    kind = sys_.PROG_TYPE_RAW_TRACEPOINT
    program = sys_.load_program(kind, RETURN_0, 0, "empty")
    name = ctypes.create_string_buffer(b"sched_switch")
    attr = sys_.attributes("QI", sys_.address(name), program)
    link = sys_.bpf(sys_.RAW_TRACEPOINT_OPEN, attr, "attach an empty program")
    try:
        yield program
    finally:
        os.close(link)
        os.close(program)


def _time_a_run(fd: int) -> float:
    runs, time = run_time_of(fd)
    return time / max(runs, 1)
