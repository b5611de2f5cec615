"""Stacks of every Ruby, from recordings of the walker's reads: no Ruby is needed."""

from __future__ import annotations

from typing import Any

import pytest

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.model.stacks import SampleFlags
from rbtrace_py.rubyvm.threads import VmThread
from rbtrace_py.rubyvm.vm import RubyVM
from replays import RECORDED, replay


def recorded(name: str) -> tuple[RubyVM, dict[str, Any]]:
    found = replay(name)
    roots = found.vm, found.symbols
    vm = RubyVM(found.memory, found.layout, *roots, zjit=found.zjit)
    return vm, found.stacks


def test_there_are_some() -> None:
    assert {"2.7", "3.1", "3.2.8", "3.3", "3.4", "4.0.5", "4.1.0dev-zjit"} <= set(
        RECORDED
    )


def keyed(vm: RubyVM) -> dict[str, VmThread]:
    """Return threads by name, or for stack_old.rb by number, with -1 for the main
    thread."""
    return {one.name or str(n): one for n, one in enumerate(vm.threads(), -1)}


@pytest.mark.parametrize("name", RECORDED)
def test_stacks_are_as_ruby_said(name: str) -> None:
    vm, stacks = recorded(name)
    found = {}
    for key, thread in keyed(vm).items():
        if key in stacks:
            walked = vm.sample(thread)
            assert walked is not None
            assert walked.flags is SampleFlags.CLEAN
            found[key] = [
                [frame.path, frame.line, frame.label]
                for frame in reversed(walked.stack.frames)
            ]
    assert found == (without_line(stacks) if "jit" in name else stacks)


def without_line(stacks: dict[str, Any]) -> dict[str, Any]:
    """The innermost frame of a JIT has no valid pc where it called no other frame."""
    return {
        key: [[path, None if path.startswith("<internal:") else line, label], *callers]
        for key, ((path, line, label), *callers) in stacks.items()
    }


@pytest.mark.parametrize("name", RECORDED)
def test_bytes_that_are_kept_are_counted(name: str) -> None:
    """Stacks are compared with the bytes of the last sample, which have a bound."""
    vm, stacks = recorded(name)
    threads = [thread for key, thread in keyed(vm).items() if key in stacks]
    vm.sample_all(threads)
    counted = vm._kept
    assert counted >= sum(
        len(part) for one in vm._tracks.values() for part in one.parts
    )
    vm.sample_all(threads)
    assert vm._kept == counted > 0


@pytest.mark.parametrize("name", RECORDED)
def test_threads_without_recorded_memory_have_no_stack(name: str) -> None:
    vm, stacks = recorded(name)
    others = [thread for key, thread in keyed(vm).items() if key not in stacks]
    assert vm.sample_all(others) == [None] * len(others)
    assert vm.counts.failed == len(others) > 8


def test_a_vm_that_is_not_there() -> None:
    vm, _ = recorded("3.1")
    other = RubyVM(vm.memory, vm.layout, vm.vm + 1 << 20)
    with pytest.raises(UnreadableMemory):
        other.threads()
