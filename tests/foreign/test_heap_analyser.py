"""heapy, which finds leaks in heap dumps, reads our dumps and reports the right
objects."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import LIB, MAIN, ROOT, TIMEOUT, Target

from .tools import need

PROGRAM = """\
require "json"
require "objspace"

class Item
  def initialize(number)
    @a = @b = @c = @d = @e = number
  end
end

X = "x"
KEPT = []

def make(count)
  count.times do |number|
    KEPT << Item.new(number)
    KEPT << (X * (1000 + number))
    KEPT << Array.new(10 + number)
  end
end

# Once before it is traced: what Ruby itself makes for a call of a method is made then.
make(1)
KEPT.clear
ObjectSpace.trace_object_allocations_start
make(500)

# What Ruby knows of the objects made in there, by class.
first = method(:make).source_location[1]
own = [Item, String, Array].to_h do |kind|
  made = ObjectSpace.each_object(kind).select do |object|
    ObjectSpace.allocation_sourcefile(object) == __FILE__ &&
      ObjectSpace.allocation_sourceline(object).between?(first, first + 6)
  end
  lines = made.map { |object| ObjectSpace.allocation_sourceline(object) }.uniq
  [kind, [*lines, made.size, made.sum { |object| ObjectSpace.memsize_of(object) }]]
end

$stdout.sync = true
puts "ready #{JSON.generate(own)}"
$stdin.gets
"""

SECTIONS = ("allocated by memory", "object count")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    path = tmp_path / "program.rb"
    path.write_text(PROGRAM)
    started = Target("ruby", f"-I{LIB}", "-rtracepoint/agent", str(path))
    yield started
    started.close()


def heapy(dump: Path) -> str:
    """Return its report on all objects whose place of allocation is known."""
    command = [need("heapy"), "read", str(dump), "all", "--lines", "1000000"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def section(name: str, said: str, program: str) -> dict[int, int]:
    """Return its numbers by line of the program."""
    rest = said[said.index(name) :]
    rows = rest[rest.index("\n  ") : rest.index("\n\n")]
    found = re.findall(rf"^ +(\d+)  {re.escape(program)}:(\d+)$", rows, re.MULTILINE)
    return {int(line): int(number) for number, line in found}


def test_heapy_finds_what_the_program_made(target: Target, tmp_path: Path) -> None:
    own = json.loads(target.ready.removeprefix("ready "))
    dump = tmp_path / "heap.json"
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "heapdump", str(target.pid), str(dump), "--gc"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
    )
    assert done.returncode == 0, done.stderr
    said = heapy(dump)
    assert "Could not parse" not in said
    sizes, counts = (
        section(name, said, str(tmp_path / "program.rb")) for name in SECTIONS
    )
    assert {kind: made[1] for kind, made in own.items()} == dict.fromkeys(
        ("Item", "String", "Array"), 500
    )
    for line, count, size in own.values():
        assert (counts[line], sizes[line]) == (count, size)
