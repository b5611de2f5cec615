"""A layout with one offset that is wrong never gives a wrong frame.

Each offset of the layout is moved by 8, one at a time, and the stack of a real thread
is read with it: the layout is refused, the stack is flagged, a name or line is missing,
or all of it is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
from moved_tables import with_wrong

from processes import Target
from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.model.stacks import Frame, SampleFlags
from rbtrace_py.rubyvm.attach import Attached, attach
from rbtrace_py.rubyvm.checks import Roots, contradiction
from rbtrace_py.rubyvm.detect import find_ruby
from rbtrace_py.rubyvm.layout import Layout, Origin
from rbtrace_py.rubyvm.layouts import OFFSETS
from rbtrace_py.rubyvm.roots import find_object_class
from rbtrace_py.rubyvm.vm import RubyVM
from replays import replay
from rubies import EACH, chroot, command
from ruby_builds import TREES, Build

BUILDS = (*EACH, *map(chroot, TREES))
PROGRAM = (
    "\n" * 40
    + """\
module Shop
  class Till
    def self.open
      yield new
    end
    def pay(cents)
      [cents].each do |one|
        [one].map do |other|
          begin
            raise "no" if other.zero?
          rescue
            fiber(other)
          end
        end
      end
    end
    alias buy pay
    def fiber(cents)
      Fiber.new { wait(cents) }.resume
    end
    define_method(:wait) { |_| $stdout.sync = true; puts :ready; $stdin.gets }
  end
end
sleeper = Thread.new do
  Shop::Till.open { |till| till.instance_eval { [1].each { sleep } } }
end
Thread.pass until sleeper.stop?
Shop::Till.open { |till| till.buy(0) }
"""
)


@dataclass(frozen=True)
class Waiting:
    """A Ruby whose threads are idle, and the correct values for it."""

    process: Process
    memory: ProcessMemory
    attached: Attached
    roots: Roots

    def stacks(self, layout: Layout) -> list[tuple[Frame, ...]] | None:
        """Return the stacks of all threads by address; None if a stack is not clean."""
        vm = RubyVM(
            self.memory, layout, self.roots.vm, self.roots.symbols, lambda _: True
        )
        threads = sorted(vm.threads(), key=lambda thread: thread.address)
        walked = [vm.sample(thread) for thread in threads]
        if any(one is None or SampleFlags.TRIMMED in one.flags for one in walked):
            return None
        return [one.stack.frames for one in walked if one is not None]


@pytest.fixture
def waiting(request: pytest.FixtureRequest, root: None) -> Iterator[Waiting]:
    name = request.param
    ruby = [*Build(name).words(), "--disable-gems", "-e"] if name in TREES else None
    words = [*ruby, PROGRAM] if ruby else command(name, PROGRAM)
    with closing(Target(*words)) as target:
        target.wait_until_it_reads()
        with Process(target.pid) as process:
            attached = attach(process)
            memory = ProcessMemory(process.pid)
            with closing(find_ruby(process)) as ruby:
                known = find_object_class(memory, ruby)
            roots = Roots(attached.vm_address, attached.symbols_address, known)
            yield Waiting(process, memory, attached, roots)


def is_right_or_missing(found: Frame, right: Frame) -> bool:
    """Return whether ``found`` equals ``right``, except for missing parts."""
    without_class = re.sub(r"[\w:]+[#.](?=\w+$)", "", right.name)
    is_named = found.name in (right.name, right.label, without_class)
    return (
        found.kind == right.kind
        and (is_named or found.name.endswith("?"))
        and found.path == right.path
        and found.line in (None, right.line)
    )


@pytest.mark.parametrize("waiting", BUILDS, indirect=True)
def test_each_offset_moved(waiting: Waiting) -> None:
    layout = waiting.attached.layout
    right = waiting.stacks(layout)
    assert right is not None
    wrong = []
    refused = 0
    for name in OFFSETS:
        offset = getattr(layout.offsets, name)
        for moved in (offset + 8, offset - 8) if offset is not None else ():
            if name == "line_size" and waiting.attached.version.minor == (2, 7):
                continue  # every second entry of a small table looks like a table
            if moved < 0 or (name.endswith("_size") and moved <= 0):
                continue
            offsets = replace(layout.offsets, **{name: moved})
            other = replace(layout, offsets=offsets)
            if contradiction(waiting.memory, other, waiting.roots) is not None:
                refused += 1
                continue
            try:
                stacks = waiting.stacks(other)
            except UnreadableMemory:
                stacks = None
            if stacks is not None and not all(
                len(one) == len(two) and all(map(is_right_or_missing, one, two))
                for one, two in zip(stacks, right, strict=True)
            ):
                wrong.append((name, moved - offset))
    assert wrong == []
    assert refused >= 60


@pytest.mark.parametrize("waiting", EACH, indirect=True)
def test_machine_code_stands_in_for_what_memory_contradicts(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = waiting.attached.layout.offsets
    bit = right.objspace_gc_bit
    assert bit is not None
    with_wrong(monkeypatch, vm_objspace=8, objspace_gc_bit=1)
    found = attach(waiting.process, source=Origin.TABLE)
    assert replace(found.layout.offsets, objspace_gc_bit=bit) == right
    origins = found.layout.origins
    assert origins["vm_objspace"] is Origin.MINED
    # Nothing contradicts the table's number of a bit, and the table is trusted more.
    assert origins["objspace_gc_bit"] is Origin.TABLE
    said = [one for one in found.evidence if one.startswith("rb_objspace_t.flags.")]
    assert said == [
        f"rb_objspace_t.flags.during_gc is at {bit + 1} by table; mined has {bit}"
    ]


@pytest.mark.parametrize("name", ["2.1.10", "2.4.10", "3.4"])
@pytest.mark.parametrize(
    ("size", "wrong"),
    [("cfp_size", 0), ("cfp_size", 60), ("line_size", 0), ("line_size", 6)],
)
def test_sizes_that_are_none(name: str, size: str, wrong: int) -> None:
    """A saved layout with such offsets is refused before anything is read."""
    image = replay(name)
    offsets = replace(image.layout.offsets, **{size: wrong})
    layout = replace(image.layout, offsets=offsets)
    found = contradiction(image.memory, layout, Roots(image.vm, image.symbols))
    assert found is not None
    assert (found.check, found.reason) == ("sizes", f"{size} is not a valid size")
