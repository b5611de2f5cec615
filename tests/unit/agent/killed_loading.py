"""A tracer that attaches to a process and kills itself at one of its steps.

killed_loading.py PID STEP     STEP is a name, or counts from 0; says its name

Or "done" if it is beyond the last, or "there" if the agent was.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tracer"))

from rbtrace_py.linux.process import Process  # noqa: E402
from rbtrace_py.session.inside.attach import attach, detach  # noqa: E402


def main(pid: int, last: str) -> None:
    steps = 0

    def at(step: str) -> None:
        nonlocal steps
        if last in (step, str(steps)):
            print(step, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1

    with Process(pid) as process:
        found = attach(process, lambda line: None, 600, at=at)
        detach(process, limit=600)
    print("there" if found.cost is None else "done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
