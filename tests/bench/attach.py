"""Loading the agent: how long the process is paused, and when the agent answers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from statistics import median

from table import Row

from rbtrace_py.agent.hook import hook
from rbtrace_py.linux.process import Process
from rbtrace_py.model.attach import Cost
from rbtrace_py.session.inside.attach import attach
from targets import ROOT

PROGRAM = str(ROOT / "tests" / "targets" / "inside/injected.rb")
LIMIT = 600.0
KINDS = {
    "busy in Ruby": "ruby",
    "busy in C (bignum)": "bignum",
    "busy in malloc": "malloc",
    "busy in GC": "gc",
    "asleep": "sleep",
    "in select": "select",
    "waits for a mutex": "mutex",
    "6 threads busy": "threads",
    "a forked worker": "forked",
}
"""The measured kinds of processes, and their names in injected.rb."""


def cost(rounds: int) -> list[Row]:
    """Attach to a new process of each kind in turn. The hook is built before."""
    hook()
    found: dict[str, list[Cost]] = {what: [] for what in KINDS}
    for _ in range(rounds):
        for what, kind in KINDS.items():
            found[what].append(_attached(kind))
    return [_row(what, costs) for what, costs in found.items()]


def _attached(kind: str) -> Cost:
    target = subprocess.Popen(
        ["ruby", PROGRAM, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert target.stdin
    assert target.stdout
    try:
        pid = int(target.stdout.readline().split()[1])
        with Process(pid) as process:
            found = attach(process, lambda line: None, LIMIT).cost
        assert found
        target.stdin.write("\n")
        assert target.stdout.readline() == "right\n"
        return found
    finally:
        target.kill()
        target.communicate()


def _row(what: str, costs: Sequence[Cost]) -> Row:
    """Return the total pause and the time until the first answer."""
    stopped = _spread([cost.stopped_ns for cost in costs])
    answer = _spread([cost.answer_ns for cost in costs])
    return Row(what, f"stopped {stopped}", f"answer {answer}")


def _spread(times: Sequence[int]) -> str:
    """Return the median, the minimum, and the maximum in milliseconds."""
    low, middle, high = min(times), median(times), max(times)
    return f"{middle / 1e6:.2f} ({low / 1e6:.2f}–{high / 1e6:.2f}) ms"
