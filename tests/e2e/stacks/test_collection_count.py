"""The number of collections, which tells whether code may have been freed or moved."""

from __future__ import annotations

from contextlib import closing

import pytest

from processes import Target
from rubies import Running
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
    with closing(Target(*build.words(), "-e", PROGRAM)) as target:
        vm = Running(target, innermost(target.pid)).vm()
        before = int(target.ready.split()[1])
        assert vm.collection() == before << 2
        assert int(target.step()) == before + 1
        assert vm.collection() == before + 1 << 2
