"""Stacks of every Ruby, from recordings of what the walker read: no Ruby is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.memory import ReplayMemory
from rbtrace_py.model import SampleFlags
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from rbtrace_py.rubyvm.vm import RubyVM

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "walker"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.memory"))


def recorded(name: str) -> tuple[RubyVM, dict[str, Any]]:
    about = json.loads((FIXTURES / f"{name}.json").read_text())
    memory = ReplayMemory((FIXTURES / f"{name}.memory").read_bytes())
    layout = layout_from(table_for(about["version"]), about["version"])
    return RubyVM(memory, layout, about["vm"], about["symbols"]), about["stacks"]


def test_there_are_some() -> None:
    assert NAMES == ["2.7", "3.1", "3.3", "3.4"]


@pytest.mark.parametrize("name", NAMES)
def test_stacks_are_as_ruby_said(name: str) -> None:
    vm, stacks = recorded(name)
    found = {}
    for thread in vm.threads():
        if thread.name in stacks:
            walked = vm.sample(thread)
            assert walked is not None
            assert walked.flags is SampleFlags.CLEAN
            found[thread.name] = [
                [frame.path, frame.line, frame.label]
                for frame in reversed(walked.stack.frames)
            ]
    assert found == stacks


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_recorded_is_no_stack(name: str) -> None:
    vm, stacks = recorded(name)
    others = [thread for thread in vm.threads() if thread.name not in stacks]
    assert vm.sample_all(others) == [None] * len(others)
    assert vm.counts.failed == len(others) > 50


def test_a_vm_that_is_not_there() -> None:
    vm, _ = recorded("3.1")
    other = RubyVM(vm.memory, vm.layout, vm.vm + 1 << 20)
    with pytest.raises(UnreadableMemory):
        other.threads()
