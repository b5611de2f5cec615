"""A tracer that puts code into a process and kills itself at one of its steps.

killed.py PID BELL STEP     STEP counts from 0; says how many steps there were
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tracer"))

from rbtrace_py.agent.inject import inject  # noqa: E402
from rbtrace_py.linux.process import Process  # noqa: E402
from rbtrace_py.session.inside.injection import ruby_addresses  # noqa: E402


def main(pid: int, code: str, path: str, last: int) -> None:
    steps: list[str] = []

    def at(step: str) -> None:
        if len(steps) == last:
            print(step, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append(step)

    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def has_rung() -> bool:
        try:
            return bool(os.read(fd, 100))
        except BlockingIOError:
            return False

    with Process(pid) as process:
        inject(process, ruby_addresses(process), code.encode(), has_rung, 60, at)
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
