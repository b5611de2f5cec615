"""Costs of the agent's hook to the program: armed, idle, and after it is removed.

Each variant has its own process, and the processes take turns. Times are those in which
the program had a CPU or was held up, because other programs also run on the machine.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from statistics import median
from typing import NamedTuple

from table import Ratio, Row, interleaved, ns

from rbtrace_py.agent.arming import Armed, ArmRequest, Selector
from rbtrace_py.agent.shared import HookMode, SharedMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.session.methods.hook_offsets import hook_offsets
from targets import HERE, ROOT, Target

FIB, REQUESTS = 27, 300
FEW_FIB, FEW_REQUESTS = 12, 2
"""Repetitions of variants that are a thousand times slower."""
TIMES = 3
SPIN = 10_000
PLAIN, IDLE, EMPTY, TABLE = "plain", "agent idle", "empty hook", "table"
RING, SLOW, TWO, TABLE_C = "ring", "slow", "two methods", "table with C methods"
HASH, RBTRACE = "TracePoint into a Hash", "rbtrace firehose"
RUBY_PROF = "ruby-prof"
"""It also hooks C methods, so it is compared with the table that includes them."""
PEERS = {RBTRACE: "rbtrace", RUBY_PROF: "ruby-prof"}
AFTER = (TWO, EMPTY, TABLE, RING, TABLE_C)
GOALS = {
    IDLE: (1.0, 1.0),
    TABLE: (4.5, 1.35),
    RING: (4.2, 1.3),
}
"""Goals for fib and for a request, compared with a process without the agent."""
OVER_EMPTY = 1.5
LESS_THAN_RBTRACE = 50

WHAT: Mapping[str, ArmRequest] = {
    EMPTY: ArmRequest(HookMode.EMPTY),
    TABLE: ArmRequest(HookMode.TABLE),
    RING: ArmRequest(HookMode.RING),
    SLOW: ArmRequest(HookMode.SLOW, threshold_ns=1_000_000_000),
    TWO: ArmRequest(
        HookMode.RING,
        select=(
            Selector("Web::Page", "singleton", "layout"),
            Selector("Web::Request", "instance", "query"),
        ),
    ),
    TABLE_C: ArmRequest(HookMode.TABLE, c_calls=True),
}


class Speed(NamedTuple):
    """ns per call of fib, and ns per request."""

    fib: float
    request: float


class Program:
    """methods.rb, with or without a library."""

    def __init__(self, library: str | None = None, few: bool = False) -> None:
        lib = f"-I{ROOT / 'ruby' / 'lib'}"
        program = str(HERE / "ruby" / "methods.rb")
        self._target = Target("ruby", lib, program, *([library] if library else []))
        self._target.in_real_time()
        self._few = few
        self.pid = self._target.pid
        self.ask = self._target.ask
        self.close = self._target.close

    def speed(self) -> Speed:
        number, count = (FEW_FIB, FEW_REQUESTS) if self._few else (FIB, REQUESTS)
        times = 1 if self._few else TIMES
        fib = min(int(self.ask(f"fib {number}")) for _ in range(times))
        request = min(int(self.ask(f"request {count}")) for _ in range(times))
        return Speed(fib / _calls(number), request)


def _calls(number: int) -> int:
    """Return the number of calls of fib(number)."""
    before, found = 1, 1
    for _ in range(number - 1):
        before, found = found, before + found + 1
    return found


def cost(rounds: int) -> list[Row]:
    """Measure while a hook is armed, and in the same processes afterwards."""
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(_running(library))
            for name, library in _libraries().items()
        }
        again = {name: programs[name] for name in (PLAIN, *AFTER)}
        before = _rounds(again, rounds)
        with ExitStack() as armings:
            for name, what in WHAT.items():
                armings.enter_context(_armed(programs[name].pid, what))
            programs[HASH].ask("count")
            if RUBY_PROF in programs:
                programs[RUBY_PROF].ask("profile")
            if RBTRACE in programs:
                armings.enter_context(_firehose(programs[RBTRACE]))
            while_armed = _rounds(programs, rounds)
        calls = int(programs[HASH].ask("calls"))  # by a TracePoint, which leaves traces
        after = _rounds(again, rounds)
        return [*_while(while_armed, calls), *_after(after, before)]


def _libraries() -> dict[str, str | None]:
    found: dict[str, str | None] = {PLAIN: None, HASH: None}
    found |= {name: library for name, library in PEERS.items() if _is_there(library)}
    return found | dict.fromkeys((IDLE, *WHAT), "tracepoint/agent")


def _is_there(library: str) -> bool:
    command = ["ruby", "-e", "require ARGV[0]", library]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def _running(library: str | None) -> Iterator[Program]:
    program = Program(library, few=library == "rbtrace")
    try:
        program.speed()
        yield program
    finally:
        program.close()


@contextmanager
def _armed(pid: int, what: ArmRequest) -> Iterator[None]:
    with Process(pid) as process:
        armed = Armed(process, _with_offsets(what, process))
        over = threading.Event()
        reader = threading.Thread(target=_drain, args=(armed.shared, over))
        reader.start()
        try:
            yield
            assert not armed.counters().conditions, what
        finally:
            over.set()
            reader.join()
            armed.disarm()
            armed.close()


def _with_offsets(what: ArmRequest, process: Process) -> ArmRequest:
    offsets = hook_offsets(process)
    assert offsets, "the bench wants to measure what is usual"
    fields = {name: getattr(what, name) for name in ArmRequest.__dataclass_fields__}
    return ArmRequest(**{**fields, "offsets": offsets})


def _drain(memory: SharedMemory, over: threading.Event) -> None:
    """Run a reader that keeps up, without the cost of processing the records."""
    while not over.wait(0.002):
        if memory.header.ring_records:
            for stream in range(memory.counters().streams):
                memory.set_tail(stream, memory.published(stream))


@contextmanager
def _firehose(program: Program) -> Iterator[None]:
    """Run rbtrace. The program runs meanwhile, or rbtrace gives up after a second."""
    with tempfile.TemporaryFile() as said:
        words = ["rbtrace", "-p", str(program.pid), "-f"]
        tool = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said)
        with suppress(OSError):
            os.sched_setaffinity(tool.pid, {min(os.sched_getaffinity(0))})
        try:
            while b"attached" not in os.pread(said.fileno(), 4096, 0):
                assert tool.poll() is None, os.pread(said.fileno(), 4096, 0)
                program.ask(f"spin {SPIN}")
            yield
        finally:
            tool.kill()
            tool.wait()


Found = Mapping[str, Sequence[Speed]]


def _rounds(programs: Mapping[str, Program], rounds: int) -> Found:
    variants: dict[str, Callable[[], Speed]] = {
        name: program.speed for name, program in programs.items()
    }
    return interleaved(variants, rounds)  # type: ignore[arg-type, return-value]


def _while(found: Found, calls: int) -> Iterator[Row]:
    plain = found[PLAIN]
    for name in (IDLE, *WHAT, HASH, RUBY_PROF, RBTRACE):
        if name not in found:
            yield Row(f"{name}: fib", "", "not installed")
            continue
        goals = GOALS.get(name, (None, None))
        yield _row(f"{name}: fib, a call", _fibs(found[name]), _fibs(plain), goals[0])
        what = f"{name}: a request of {calls} calls"
        yield _row(what, _requests(found[name]), _requests(plain), goals[1])
    yield from _against(found)


def _against(found: Found) -> Iterator[Row]:
    """Yield the comparison of two variants' additional costs with the goals."""
    for name, other, goal in (
        (TABLE, EMPTY, f"≤ {OVER_EMPTY:g}×"),
        (RING, EMPTY, ""),
        (RBTRACE, RING, f"≥ {LESS_THAN_RBTRACE}×"),
        (HASH, TABLE, ""),
        (RUBY_PROF, TABLE_C, ""),
    ):
        if name in found:
            added = [_added(found, each) for each in (name, other)]
            yield Row(
                f"{name}: fib, what a call takes longer",
                ns(median(added[0])),
                f"{other} {ns(median(added[1]))}",
                Ratio.of(*added),
                goal,
            )


def _added(found: Found, name: str) -> list[float]:
    pairs = zip(_fibs(found[name]), _fibs(found[PLAIN]), strict=True)
    return [armed - plain for armed, plain in pairs]


def _after(after: Found, before: Found) -> Iterator[Row]:
    """Yield each variant compared with itself, because memory placement differs by
    process."""
    for name, found in after.items():
        for what, times in (("fib, a call", _fibs), ("a request", _requests)):
            row = f"after {name}: {what}"
            yield _row(row, times(found), times(before[name]), against="before")


def _row(
    what: str,
    ours: Sequence[float],
    base: Sequence[float],
    goal: float | None = None,
    against: str = PLAIN,
) -> Row:
    return Row(
        what,
        ns(median(ours)),
        f"{against} {ns(median(base))}",
        Ratio.of(ours, base),
        "" if goal is None else f"≤ {goal:g}×",
    )


def _fibs(speeds: Sequence[Speed]) -> list[float]:
    return [speed.fib for speed in speeds]


def _requests(speeds: Sequence[Speed]) -> list[float]:
    return [speed.request for speed in speeds]
