"""The number of collections, which shows whether code may have been freed or moved."""

from __future__ import annotations

from contextlib import closing

import pytest

from processes import Target, comes_true
from rbtrace_py.model.stack_walk import WalkedStack
from rbtrace_py.session.stacks.kernel_stacks import KernelStacks
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.targets.targets import Targets
from ruby_builds import Build, each_build, innermost

PROGRAM = """
GC.disable
3.times { GC.start }
$stdout.sync = true
puts "ready #{GC.count}"
while gets
  GC.start
  puts GC.count
end
"""


@each_build
@pytest.mark.usefixtures("root")
def test_each_collection_is_counted(build: Build) -> None:
    """The memory reader and the kernel's walker both read the count."""
    options = SamplingOptions(mode=SamplingMode.OFFCPU, engine=EngineChoice.BPF)
    with (
        closing(Target(*build.words(), "-e", PROGRAM)) as target,
        closing(Targets.from_pids([innermost(target.pid)])) as targets,
        Sampling(targets, options) as sampling,
    ):
        (ruby,) = sampling.rubies
        engine, found = sampling.engine, list[WalkedStack]()
        assert isinstance(engine, KernelStacks)
        before = int(target.ready.split()[1])
        assert ruby.vm.collection() == before << 2
        assert int(target.step()) == before + 1
        assert ruby.vm.collection() == before + 1 << 2

        def has_walked() -> bool:
            found.extend(one for one in engine.walker.records() if one.frames)
            return before + 1 << 2 in {one.collection for one in found}

        assert comes_true(has_walked)
        numbers = [one.collection >> 2 for one in found]
        assert numbers == sorted(numbers)
        assert set(numbers) <= {before, before + 1}
