"""Cost of ten thousand probes and of two hundred attachments."""

from __future__ import annotations

import time
from statistics import median

from table import Row, seconds

from rbtrace_py.bpf.attach import choose_attacher
from rbtrace_py.session.targets.targets import Targets
from targets import Bare, Target, c_target, ruby_target


def ten_thousand(rounds: int, count: int = 10_000) -> list[Row]:
    rows = []
    for name, start in (("C", c_target), ("Ruby", ruby_target)):
        found = [_define(start(), count) for _ in range(rounds)]
        each = median(one[0] for one in found)
        memory = max(one[1] for one in found) / 2**20
        descriptors, images = found[-1][2:]
        goal = "≤ 4 MB" if name == "C" else ""
        rows += [
            Row(f"a definition of {count:,} from {name}", f"{each / 1000:.1f} µs"),
            Row(f"memory for {count:,} from {name}", f"{memory:.2f} MB", goal=goal),
            Row(
                f"descriptors for {count:,} from {name}",
                f"{descriptors} for {images} images" if images else str(descriptors),
                goal="1 an image",
            ),
        ]
        if name == "C":
            rows[0] = Row(rows[0].what, rows[0].measured, goal="< 20 µs")
    return rows


def _define(target: Target, count: int) -> tuple[float, int, int, int]:
    try:
        before = target.descriptors()
        each, images, memory = target.ask(f"define {count}").split()
        return float(each), int(memory), target.descriptors() - before, int(images)
    finally:
        target.close()


def attach_many(rounds: int, count: int = 200) -> list[Row]:
    """Measure entering and leaving a session on that many probes, and the links
    alone."""
    target = c_target()
    sessions, links, detaches = [], [], []
    name = choose_attacher().name
    try:
        target.ask(f"define {count}")
        for _ in range(rounds):
            targets = Targets.from_pids([target.pid])
            spent = Spent()
            start = time.perf_counter()
            with Timed(targets, ["bench:many_*"], spent) as session:
                assert len(session.probes) == count
                entered = time.perf_counter()
                session.finish()
                left = time.perf_counter()
            targets.close()
            sessions.append(time.perf_counter() - start)
            links.append(spent.seconds + left - entered)
            detaches.append(left - entered)
    finally:
        target.close()
    return [
        Row(
            f"{count} probes attached and detached ({name})",
            seconds(median(links)),
            f"detaching {seconds(median(detaches))}",
            goal="< 0.2 s",
        ),
        Row(f"the whole session on {count} probes", seconds(median(sessions))),
    ]


class Spent:
    seconds = 0.0


class Timed(Bare):
    """A bare session that measures how long attaching takes."""

    def __init__(self, targets: Targets, words: list[str], spent: Spent) -> None:
        super().__init__(targets, words)
        self._spent = spent

    def _attach(self, *arguments: object) -> int:
        start = time.perf_counter()
        try:
            return super()._attach(*arguments)  # type: ignore[arg-type]
        finally:
            self._spent.seconds += time.perf_counter() - start
