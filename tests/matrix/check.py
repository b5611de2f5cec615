"""Run all tests of one Ruby and print its row of docs/rubies.md.

    RBTRACE_RUBY=/dir/bin/ruby python tests/matrix/check.py [--fixture NAME]

Exits with 1 if a test failed. ``scripts/rubies.sh check DIR`` calls it. With --fixture
it also writes tests/fixtures/walker/NAME.*, which ``make test`` replays.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
sys.path[:0] = [str(TESTS), str(ROOT / "tracer"), str(TESTS / "fixtures" / "walker")]

import make  # noqa: E402

from processes import MAIN, Target  # noqa: E402
from rubies import WAITING  # noqa: E402

JITS = ("yjit", "zjit", "mjit", "rjit")
COLUMNS = {
    "dump": ("test_dump",),
    "core": ("test_core",),
    "top, stacks": ("test_stacks", "test_top"),
    "attach": ("test_attach",),
    "calls, latency": ("test_calls", "test_latency"),
    "probes": ("test_probes",),
    "places": ("test_places",),
    "instructions": ("test_instructions",),
}
"""Columns of the table, and their tests."""
DESCRIBE = """
require "rbconfig"
c = RbConfig::CONFIG
given = c["configure_args"].to_s.scan(/'([^']*)'/).flatten
jits = given.grep(/\\A--enable-.*jit/).map { |flag| flag.delete_prefix("--enable-") }
level = given.grep(/\\Aoptflags=/).map { |flag| flag.split("=").last }
kind = c["ENABLE_SHARED"] == "yes" ? "shared" : "static"
compiler = c["CC"][/clang|musl|gcc/]
puts [RUBY_VERSION, [kind, compiler, *level, *jits].join(", ")].join("\\t")
"""


class Outcomes:
    """The result of each test: by its name, then by its parameter."""

    def __init__(self) -> None:
        self.by_test: dict[str, dict[str, str]] = defaultdict(dict)

    def run(self, *folders: str) -> int:
        """Run the tests of these folders. Return pytest's exit code."""
        with tempfile.TemporaryDirectory() as place:
            report = f"{place}/report.xml"
            words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
            words += [str(TESTS / folder) for folder in folders]
            done = subprocess.run([sys.executable, "-m", "pytest", *words])
            for case in ElementTree.parse(report).iter("testcase"):
                self._add(case)
        return done.returncode

    def _add(self, case: ElementTree.Element) -> None:
        name, _, parameter = case.get("name", "").partition("[")
        ended = {"failure": "failed", "error": "failed", "skipped": "skipped"}
        found = [ended[part.tag] for part in case if part.tag in ended]
        # "failed" is before "passed" is before "skipped".
        outcomes = self.by_test[name]
        known = outcomes.get(parameter, "skipped")
        outcomes[parameter] = min([known, *(found or ["passed"])])

    def cell(self, tests: tuple[str, ...]) -> str:
        """Return ``yes``, ``no``, or the condition. A dash means that no test ran."""
        found: dict[str, set[str]] = defaultdict(set)
        for test in tests:
            for parameter, outcome in self.by_test[test].items():
                if outcome != "skipped":
                    found[_jit(parameter)].add(outcome)
        failed = [jit for jit, outcomes in found.items() if "failed" in outcomes]
        if not found:
            return "–"
        if not failed:
            return "yes"
        return "no" if len(failed) == len(found) else f"not with {', '.join(failed)}"

    def jits(self) -> str:
        """Return the JITs with which the tests ran."""
        ran = {
            _jit(parameter)
            for outcomes in self.by_test.values()
            for parameter, outcome in outcomes.items()
            if outcome != "skipped"
        }
        return ", ".join(sorted(ran, key=["off", *JITS].index))


def _jit(parameter: str) -> str:
    return next((jit for jit in JITS if jit in parameter.lower()), "off")


def describe(ruby: str) -> tuple[str, str]:
    """Return its version and the kind of build."""
    words = [ruby, "--disable-gems", "-e", DESCRIBE]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    version, kind = said.strip().split("\t")
    listing = subprocess.run(["ldd", ruby], capture_output=True, text=True).stdout
    library = re.search(r"libruby\S* => (\S+)", listing)
    file = library.group(1) if library else ruby
    sections = subprocess.run(["readelf", "-SW", file], capture_output=True, text=True)
    is_stripped = ".symtab" not in sections.stdout
    return version, f"{kind}, stripped" if is_stripped else kind


def offsets(ruby: str) -> str:
    """Return the source of the offsets, as ``63 DWARF``."""
    target = Target(ruby, "--disable-gems", "-e", WAITING)
    try:
        words = [sys.executable, "-c", MAIN, "layout", str(target.pid), "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
    finally:
        target.close()
    if done.returncode:
        return "none"
    counts = Counter(one["origin"] for one in json.loads(done.stdout)["offsets"])
    return ", ".join(f"{count} {origin}" for origin, count in counts.most_common())


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    ruby = os.environ["RBTRACE_RUBY"]
    outcomes = Outcomes()
    status = outcomes.run("matrix", "truth")
    version, kind = describe(ruby)
    cells = [outcomes.cell(tests) for tests in COLUMNS.values()]
    row: list[Any] = [version, kind, outcomes.jits(), *cells, offsets(ruby)]
    print("| Ruby | build | JIT |", " | ".join(COLUMNS), "| offsets from |")
    print(f"| {' | '.join(row)} |")
    if "--fixture" in arguments:
        make.make(arguments[arguments.index("--fixture") + 1], ruby)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
