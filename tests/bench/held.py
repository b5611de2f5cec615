"""The agent's time with the GVL while it hooks 1,000 methods or searches for new ones.

One thread of the program is always busy and gets the GVL after each turn of the agent,
so it measures the longest turn (ruby/gvl.rb).
"""

from __future__ import annotations

import subprocess
import time
from contextlib import closing

from table import Row

from rbtrace_py.agent.arming import Armed, ArmRequest, Selector
from rbtrace_py.agent.shared import HookMode
from rbtrace_py.linux.process import Process
from targets import HERE, Target

METHODS = 1000
SELECT = (Selector("Many"),)
LOOKING_SECONDS = 5
"""The agent searches for methods twice per second."""
GOAL = "≤ 5 ms"


def longest(rounds: int) -> list[Row]:
    """Return the longest turns of hooking and searching, without JIT and with YJIT."""
    return [
        row
        for words in (("ruby",), ("ruby", "--yjit"))
        if subprocess.run([*words, "-v"], capture_output=True).returncode == 0
        for row in _of(words, rounds)
    ]


def _of(words: tuple[str, ...], rounds: int) -> list[Row]:
    hooking, looking = zip(*(_round(words) for _ in range(rounds)), strict=True)
    name = " ".join(words)
    found = ((f"{METHODS} hooked", hooking), ("looked for again", looking))
    return [
        Row(f"{name}: {what}", _text(answers), goal=GOAL) for what, answers in found
    ]


def _round(words: tuple[str, ...]) -> tuple[str, str]:
    target = Target(*words, str(HERE / "ruby" / "gvl.rb"), str(METHODS))
    what = ArmRequest(HookMode.TABLE, select=SELECT)
    with (
        closing(target),
        Process(target.pid) as process,
        Armed(process, what, lambda hello: target.ask("reset")) as armed,
    ):
        assert armed.targets == METHODS
        hooking = target.ask("reset")
        time.sleep(LOOKING_SECONDS)
        return hooking, target.ask("reset")


def _text(answers: tuple[str, ...]) -> str:
    held, ours = zip(*(map(int, answer.split()) for answer in answers), strict=True)
    return f"{max(held) / 1000:.1f} ms, without GC {max(ours) / 1000:.1f} ms"
