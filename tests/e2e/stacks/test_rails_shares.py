"""Shares of controller actions of examples/rails, compared with the application's
clocks."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from rails import RailsExample

from commands import Tracer, by_names
from processes import TARGETS, is_soak, margin

ACTIONS = (
    "ItemsController#index",
    "ItemsController#show",
    "OrdersController#create",
    "ReportsController#index",
)
CLOCKS = TARGETS / "stacks" / "rails_clocks.rb"
RATE = 499
SECONDS = 20 if is_soak() else 6
POINTS = 3.0

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.usefixtures("root")]


@contextmanager
def load(shop: RailsExample) -> Iterator[None]:
    """Keep both workers busy with requests of each kind."""
    is_over = threading.Event()

    def visit(number: int) -> None:
        while not is_over.is_set():
            for item in range(1, 9):
                shop.ask("GET", "/items")
                shop.ask("GET", f"/items/{item}")
                shop.ask("POST", "/orders", item_id=item, count=1)
            if number == 0:
                shop.ask("GET", "/reports")

    visitors = [threading.Thread(target=visit, args=(number,)) for number in range(4)]
    for visitor in visitors:
        visitor.start()
    try:
        yield
    finally:
        is_over.set()
        for visitor in visitors:
            visitor.join()


def covered(document: Any, mode: str) -> dict[int, int]:
    """Return for how many ns each process was sampled, up to the end.

    Processes are attached one after the other, which takes some 50 ms each. In wall
    mode, the weights of a thread add up to the time it was sampled.
    """
    threads, times = document["threads"], Counter[int]()
    for row in document["stacks"]:
        times[row["thread"]] += row["weight"]
    whole = document["ended_ns"] - document["started_ns"]
    return {
        pid: max(ns for index, ns in times.items() if threads[index]["pid"] == pid)
        if mode == "wall"
        else whole
        for pid in document["pids"]
    }


def clocks(folder: Path, document: Any, mode: str) -> Counter[str]:
    """Return each action's time in ns while its process was sampled, by the
    application's clock."""
    found, ended = Counter[str](), document["ended_ns"]
    for pid, time in covered(document, mode).items():
        began = ended - time
        for line in (folder / f"clocks-{pid}.log").read_text().splitlines():
            name, *numbers = line.split()
            first, last, wall, cpu = map(int, numbers)
            inside = max(0, min(last, ended) - max(first, began)) / max(1, wall)
            found[name] += round((wall if mode == "wall" else cpu) * inside)
    return found


def shares(weights: Counter[str]) -> dict[str, float]:
    whole = sum(weights[name] for name in ACTIONS)
    return {name: 100 * weights[name] / whole for name in ACTIONS}


@pytest.mark.parametrize("mode", ["wall", "cpu"])
def test_shares_of_actions(
    mode: str, trace: Callable[..., Tracer], tmp_path: Path
) -> None:
    env = {"RUBYOPT": f"-r{CLOCKS}"}
    with closing(RailsExample(tmp_path, env)) as shop, load(shop):
        pids = ",".join(map(str, shop.workers))
        words: tuple[object, ...] = ("--mode", mode, "-r", RATE, "-d", SECONDS)
        words += ("--format", "json", "--engine", "bpf") + ("--idle",) * (
            mode == "wall"
        )
        out, err, code = trace("stacks", pids, *words).result()
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    weights: Counter[str] = Counter()
    for names, weight in by_names(document).items():
        for action in ACTIONS:
            weights[action] += weight * (action in names)
    truth = clocks(tmp_path, document, mode)
    found, expected = shares(weights), shares(truth)
    off = {name: found[name] - expected[name] for name in ACTIONS}
    part = sum(weights.values()) / document["weight"]
    ticks = int(document["counters"]["samples"] * part)
    most = margin(ticks, POINTS) if mode == "cpu" else POINTS
    assert max(map(abs, off.values())) <= most, (found, expected, ticks)
    print(mode, {n: (round(found[n], 2), round(expected[n], 2)) for n in ACTIONS})
    print(sum(weights.values()) / 1e9, sum(truth[n] for n in ACTIONS) / 1e9, ticks)
