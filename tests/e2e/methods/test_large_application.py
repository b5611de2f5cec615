"""A long trace of a Rails application with 5,000 methods: no loss, and flat memory.

`make test` requests each page once. `make soak` traces for ten and for twenty minutes.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from lasting import own_memory, running
from rails import THREADS, Rails, in_threads

from processes import TARGETS, is_soak
from rbtrace_py.linux.process import Process
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.targets.targets import Targets

CONTROLLERS, ACTIONS, PARTS = 50, 20, 3
PAGES = [
    f"many{controller}/action{action}"
    for action in range(ACTIONS)
    for controller in range(CONTROLLERS)
]
METHODS = CONTROLLERS * ACTIONS * (2 + PARTS)
TABLE_SECONDS = 600 if is_soak() else 0
KEEP, RECORDED_SECONDS, WARM_SECONDS = ("2m", 1200, 180) if is_soak() else ("3s", 12, 6)
SLOW_EVERY = 50
MOST_MIB = 8
"""Maximum growth of memory and disk after the warm-up."""


@pytest.fixture
def rails(root: None, tmp_path: Path) -> Iterator[Rails]:
    app = Rails(tmp_path, TARGETS / "methods/many.ru")
    yield app
    app.close()


def ask_for(rails: Rails, until: float, slow_every: int = 0) -> Counter[str]:
    """Request each page in turn, in several threads, at least once. Return the
    counts."""
    asked: Counter[str] = Counter()

    def ask(number: int) -> None:
        for turn in itertools.count(number, THREADS):
            if turn >= len(PAGES) and time.monotonic() > until:
                return
            page = PAGES[turn % len(PAGES)]
            is_slow = slow_every and turn % slow_every == 0
            rails.get(f"/{page}?slow=1" if is_slow else f"/{page}")
            asked[page] += 1

    in_threads(ask)
    return asked


@pytest.mark.alone
@pytest.mark.timeout(TABLE_SECONDS + 300)
def test_no_duration_is_lost(rails: Rails) -> None:
    """Each call is in its method's histogram, and each action's count is exact."""
    options = MethodOptions("method", confirm=lambda text: True)
    targets = Targets({rails.pid: Process(rails.pid)})
    with Methods(targets, "latency", ["method"], options) as session:
        asked = ask_for(rails, time.monotonic() + TABLE_SECONDS)
        session.finish()
        result = session.snapshot()
    found = {str(group.key): group for group in result.groups}
    calls = {name: group.count for name, group in found.items()}
    counted = {
        name: group.distribution.count if group.distribution else 0
        for name, group in found.items()
    }
    print(f"{sum(calls.values())} calls of {len(calls)} methods, {asked.total()} pages")
    assert counted == calls
    assert {
        page: calls["M{}Controller#{}".format(*page[1:].split("/"))] for page in asked
    } == asked
    own = [name for name in calls if re.match(r"(Thing|Many)\d.*#\D+\d+$", name)]
    assert len(own) == METHODS
    assert (result.lost, result.counters["no_block"]) == (0, 0)


def size_of(folder: Path) -> int:
    """Return the size of a folder's files in KiB. Some are deleted meanwhile."""
    size = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):
            size += file.stat().st_size
    return size >> 10


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(RECORDED_SECONDS + 300)
def test_a_flight_recorder_is_flat(rails: Rails, tmp_path: Path) -> None:
    """The tool's and the application's memory and the disk stay flat, while 1 of 50
    requests is slow."""
    folder = tmp_path / "flight"
    record = ("--record", str(folder), "--keep", KEEP)
    words = ("calls", "--slow", "200", *record, "--yes")
    end = time.monotonic() + RECORDED_SECONDS
    load = threading.Thread(target=ask_for, args=(rails, end, SLOW_EVERY))
    sizes: list[dict[str, int]] = []
    with running(words, rails.pid, tmp_path) as pid:
        load.start()
        while load.is_alive():
            load.join(1)
            memory = {"tool": own_memory(pid), "program": own_memory(rails.pid)}
            sizes.append(memory | {"disk": size_of(folder)})
    sizes = sizes[WARM_SECONDS:]
    half = len(sizes) // 2
    grown = {
        what: max(each[what] for each in sizes[half:])
        - max(each[what] for each in sizes[:half])
        for what in sizes[0]
    }
    print(f"KiB: {sizes[0]}, at the end {sizes[-1]}, grown {grown}")
    assert {what: size for what, size in grown.items() if size > MOST_MIB << 10} == {}
    assert sizes[-1]["disk"] > 0
