"""Every figure of docs/performance.md, as a table.

    python tests/bench/run.py [--quick] [--json] [--only PART]...

Speed does not pass or fail. The goals are printed beside the figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tracer"))

import accuracy
import agent
import attach
import events
import exact
import held
import hits
import otel
import realapp
import registered
import request
import scale
import stacks
import startup
import switches
import taken
from table import Ratio, Row, ns, plain, text

from targets import HERE


def untraced(rounds: int) -> list[Row]:
    """Return what ruby/fire.rb measures in one process."""
    done = subprocess.run(
        ["ruby", str(HERE / "ruby" / "fire.rb"), "--json", "--rounds", str(rounds)],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)
    times = found["ns"]
    return [
        Row(
            r["what"],
            ns(times[r["what"]]),
            f"{r['against']} {ns(times[r['against']])}",
            Ratio(r["ratio"], r["low"], r["high"], r["best"]),
            f"≤ {r['goal']:g}×" if r["goal"] else "",
        )
        for r in found["ratios"]
    ]


def parts(quick: bool) -> dict[str, tuple[str, Callable[[], list[Row]]]]:
    """Return each part's title and measuring function by name."""
    rounds, times = (7, 2_000) if quick else (41, 5_000)
    few = 3 if quick else 11
    values = 20_000 if quick else 200_000
    return {
        "untraced": ("Untraced", lambda: untraced(7 if quick else 61)),
        "enabled": ("Traced: a fire", lambda: hits.enabled(times, rounds)),
        "latency": ("Traced: latency", lambda: hits.measured(times, rounds)),
        "exact": ("Percentiles", lambda: exact.percentiles(1, values)),
        "scale": (
            "Many probes",
            lambda: [*scale.ten_thousand(few), *scale.attach_many(few)],
        ),
        "startup": ("Start-up", lambda: startup.measure(few)),
        "agent": ("Method events", lambda: agent.cost(3 if quick else 15)),
        "held": ("The GVL, as methods are hooked", lambda: held.longest(few)),
        "switches": ("On and off CPU", lambda: switches.cost(5 if quick else 21)),
        "attach": ("Attach", lambda: attach.cost(3 if quick else 21)),
        "rails": (
            "A Rails request under puma, wrk as load",
            lambda: realapp.cost(1 if quick else 10, 5),
        ),
        "rails-spans": (
            "A Rails request with the gem's spans",
            lambda: registered.cost(*((2, 2) if quick else (20, 100))),
        ),
        "rails-methods": (
            "A Rails request, its methods hooked",
            lambda: realapp.hooks(1 if quick else 21, 3 if quick else 5),
        ),
        "rails-inside": (
            "A Rails request without a server, its methods hooked",
            lambda: request.cost(3 if quick else 30),
        ),
        "rails-recording": (
            "A Rails request, all its calls recorded",
            lambda: realapp.recording(5 if quick else 60),
        ),
        "stacks": (
            "Stacks: what a sample costs",
            lambda: stacks.cost(1 if quick else 7, 2 if quick else 4),
        ),
        "stacks-otel": (
            "Stacks: OpenTelemetry's eBPF profiler",
            lambda: otel.cost(1 if quick else 5, 10),
        ),
        "stacks-taken": (
            "Stacks: what the target loses",
            lambda: taken.cost(3 if quick else 21),
        ),
        "stacks-on": (
            "Stacks at events",
            lambda: events.cost(times, 3 if quick else 11),
        ),
        "stacks-start": (
            "Stacks: start-up",
            lambda: [*startup.sampling(few), *stacks.start(few)],
        ),
        "stacks-torn": (
            "Stacks: torn reads",
            lambda: stacks.torn(20_000 if quick else 100_000),
        ),
        "accuracy": (
            "Stacks: shares and totals against the program's clocks",
            lambda: accuracy.table(quick),
        ),
        "stacks-memory": (
            "Stacks: memory",
            lambda: stacks.memory(100_000 if quick else 3_600_000),
        ),
    }


def machine() -> str:
    ruby = subprocess.check_output(["ruby", "-v"], text=True)
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{kernel}; {ruby.strip()}; Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--only", action="append", choices=list(parts(True)))
    options = parser.parse_args()
    chosen = parts(options.quick)
    document: dict[str, object] = {
        "schema": "rbtrace-py/bench",
        "version": 1,
        "machine": machine(),
    }
    if not options.json:
        print(document["machine"], flush=True)
    for name in options.only or chosen:
        title, measure = chosen[name]
        rows = measure()
        document[name] = plain(rows)
        if not options.json:
            print("\n" + text(title, rows), flush=True)
    if options.json:
        print(json.dumps(document, indent=1, ensure_ascii=False))


main()
