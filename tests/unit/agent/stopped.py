"""A tracer that attaches to a process and says what it did while that was stopped.

stopped.py PID     prints JSON: the events of Python's own audit, how many collections
of its garbage there were, and the scheduling class of the thread that stopped it
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tracer"))

from rbtrace_py.linux.process import Process  # noqa: E402
from rbtrace_py.session.inside.attach import attach  # noqa: E402

STOPPED, GOES_ON = "stopped", "detached"


def main(pid: int) -> None:
    is_stopped = False
    events: list[str] = []
    collections: list[str] = []
    classes: set[int] = set()

    def at(step: str) -> None:
        nonlocal is_stopped
        is_stopped = step == STOPPED or (is_stopped and step != GOES_ON)
        if is_stopped:
            classes.add(os.sched_getscheduler(0))

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if is_stopped:
            events.append(f"{event} {arguments[0] if arguments else ''}")

    def collected(phase: str, info: dict[str, int]) -> None:
        if is_stopped:
            collections.append(phase)

    with Process(pid) as process:
        sys.addaudithook(audit)
        gc.callbacks.append(collected)
        gc.set_threshold(1, 1, 1)
        attach(process, lambda line: None, 60, at=at)
        is_enabled = gc.isenabled()
    found = {
        "events": events,
        "collections": len(collections),
        "classes": sorted(classes),
        "later": [os.sched_getscheduler(0), is_enabled],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
