"""The walker's stacks, compared with Ruby's own, on every installed Ruby."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import rubies
import ruby_builds
import tags
from processes import times
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ptrace.pause import paused
from rbtrace_py.model.stacks import CHANGED, Frame, FrameKind, SampleFlags, ThreadState
from rbtrace_py.rubyvm.vm import RubyVM, Walked
from recorded_memory import RecordingMemory, ReplayMemory

UNNAMED = re.compile(r"#<.+>[#.]")
"""Prefix of a method whose class has no name. Ruby shows none."""
NEWEST = "4.0.5-shared"
"""The newest Ruby of ruby_builds.py."""


class Zoo:
    """The parked threads of stack_zoo.rb, as seen by Ruby and by the walker."""

    def __init__(self, process: rubies.Running) -> None:
        self.process = process
        self.truth: dict[str, Any] = json.loads(process.ready.removeprefix("ready "))
        self.vm = process.vm()
        self.threads = {thread.name: thread for thread in self.vm.threads()}

    @property
    def names(self) -> list[str]:
        return list(self.truth["stacks"])

    @property
    def has_qualified_labels(self) -> bool:
        return self.vm.layout.traits.qualified_labels

    def walk(self, name: str) -> Walked:
        walked = self.vm.sample(self.threads[name])
        assert walked is not None
        return walked


@pytest.fixture(scope="module", params=[*rubies.EACH, rubies.chroot(NEWEST)])
def zoo(request: pytest.FixtureRequest) -> Iterator[Zoo]:
    with rubies.running(request.param, "stacks/stack_zoo.rb") as process:
        yield Zoo(process)


def seen(walked: Walked) -> list[list[Any]]:
    """Return the path, line, and label of each frame as Ruby reports them, newest
    first.

    For a C function without a caller, as at the root of an Enumerator's fiber, Ruby
    reports no path and line 0. Our path is empty and our line is unknown.
    """
    return [
        [frame.path or None, frame.line if frame.path else 0, frame.label]
        for frame in reversed(walked.stack.frames)
    ]


def test_every_frame_is_as_ruby_says(zoo: Zoo) -> None:
    found = {name: seen(zoo.walk(name)) for name in zoo.names}
    assert found == zoo.truth["stacks"]


def test_several_at_once_are_the_same(zoo: Zoo) -> None:
    threads = [zoo.threads[name] for name in zoo.names]
    walked = zoo.vm.sample_all(threads)
    found = {
        thread.name: seen(one)
        for thread, one in zip(threads, walked, strict=True)
        if one is not None
    }
    assert found == zoo.truth["stacks"]


def test_parked_threads_are_clean_at_once(zoo: Zoo) -> None:
    flags = {zoo.walk(name).flags for name in zoo.names}
    assert flags == {SampleFlags.CLEAN}
    counts = zoo.vm.counts
    assert (counts.trimmed, counts.failed) == (0, 0)


def test_states_and_fibers(zoo: Zoo) -> None:
    walked = [zoo.walk(name) for name in zoo.names]
    assert {one.state for one in walked} == {ThreadState.SLEEPING}
    assert len({one.fiber for one in walked}) == len(walked)


def test_names_are_labels_where_ruby_qualifies_them(zoo: Zoo) -> None:
    """Labels of Ruby 3.4 contain the class. Ours do even if the class has no name."""
    if not zoo.has_qualified_labels:
        return
    frames = [frame for name in zoo.names for frame in zoo.walk(name).stack.frames]
    others = {frame for frame in frames if frame.name != frame.label}
    assert {frame.label for frame in others} == {
        "anonymous",
        "anonymous_class_method",
        "its_own",
        "evaluated_singleton",
        "shout",
    }
    assert all(UNNAMED.sub("", frame.name) == frame.label for frame in others)


def test_names_are_those_of_the_methods_owner(zoo: Zoo) -> None:
    owners: dict[str, str] = zoo.truth["owners"]
    found: dict[str, set[str]] = {}
    for name in zoo.names:
        if name in ("enumerator", "inherited"):
            continue  # other classes' methods of these names
        for frame in zoo.walk(name).stack.frames:
            method = re.sub(r".*(?:[#.]| in )", "", frame.label)
            if method in owners:
                found.setdefault(method, set()).add(own_name(frame))
    anonymous = f"#<Class:{zoo.truth['anonymous']}>#anonymous"
    expected = {name: {owners[name]} for name in found} | {"anonymous": {anonymous}}
    assert found == expected
    assert len(found) >= 25


def own_name(frame: Frame) -> str:
    """Return the name alone, as ``Animal#blocks`` of ``block (2 levels) in
    Animal#blocks``."""
    return frame.name.rpartition(" in ")[2]


def test_names_of_what_belongs_to_one_object(zoo: Zoo) -> None:
    newest = zoo.walk("object's own").stack.frames[-3]
    assert newest.name == f"#<Animal:{zoo.truth['object']}>.its_own"
    newest = zoo.walk("anonymous class method").stack.frames[-3]
    anonymous = zoo.truth["anonymous"]
    assert newest.name == f"#<Class:{anonymous}>.anonymous_class_method"
    newest = zoo.walk("refinement").stack.frames[-3]
    assert newest.name == "#<refinement:String@Shouting>#shout"


def test_a_method_is_named_by_who_defined_it(zoo: Zoo) -> None:
    names = [frame.name for frame in zoo.walk("inherited").stack.frames]
    assert names[-4:-1] == ["Puppy#plain", "Animal#plain", "Object#park"]


def test_kinds(zoo: Zoo) -> None:
    """From Ruby 3.3 on, Queue#pop is a Ruby method. Ruby 3.3 places it in
    <internal:thread_sync>."""
    frames = zoo.walk("c functions").stack.frames[:-1]
    kinds = {frame.name: frame.kind for frame in frames}
    assert kinds.pop("Enumerable#sort_by", FrameKind.C) is FrameKind.C
    assert kinds.pop("Array#each") is FrameKind.C
    assert set(kinds.values()) == {FrameKind.RUBY}


def test_threads_have_the_kernels_ids(zoo: Zoo) -> None:
    tasks = set(map(int, os.listdir(f"/proc/{zoo.process.pid}/task")))
    tids = [thread.tid for thread in zoo.threads.values()]
    assert len(set(tids)) == len(tids) == len(zoo.names) + 1
    assert set(tids) <= tasks
    main = next(thread for thread in zoo.threads.values() if thread.is_main)
    assert main.tid == zoo.process.pid


def test_threads_ids_are_those_ruby_knows(zoo: Zoo) -> None:
    """Thread#native_thread_id exists from Ruby 3.1 on."""
    found = [zoo.threads[name].tid for name in zoo.names]
    known = [tid for tid in zoo.truth["tids"] if tid is not None]
    assert known in (found, [])


def test_recorded_memory_is_sufficient_for_a_replay(zoo: Zoo) -> None:
    attached = zoo.process.attach()
    memory = RecordingMemory(ProcessMemory(zoo.process.pid))

    def stacks(vm: RubyVM) -> list[list[list[Any]]]:
        walked = [vm.sample(thread) for thread in vm.threads()[:6]]
        return [seen(one) for one in walked if one is not None]

    roots = (attached.vm_address, attached.symbols_address)
    live = stacks(RubyVM(memory, attached.layout, *roots))
    data = memory.dump()
    assert len(data) < 40_000
    assert stacks(RubyVM(ReplayMemory(data), attached.layout, *roots)) == live


def test_cached_frames_are_still_correct_after_revalidation(zoo: Zoo) -> None:
    before = {name: seen(zoo.walk(name)) for name in zoo.names}
    zoo.vm.revalidate()
    assert {name: seen(zoo.walk(name)) for name in zoo.names} == before


@pytest.mark.parametrize("way", ["require", "replaced", "const_added"])
@ruby_builds.each_build
def test_what_a_constant_calls_is_clean(build: ruby_builds.Build, way: str) -> None:
    """It runs and is stopped. Only the instruction shows that the stack is clean."""
    with ruby_builds.running(build, "stacks/autoloading.rb", way) as process:
        if process.ready == "ready without":
            return
        vm = process.vm()
        end = time.monotonic() + 60
        while True:  # it may be stopped within a call that still belongs to `puts`
            os.kill(process.pid, signal.SIGSTOP)
            walked = vm.sample(vm.threads()[0])
            if walked and not walked.flags and walked.state is ThreadState.RUNNING:
                break
            assert time.monotonic() < end, walked
            os.kill(process.pid, signal.SIGCONT)
    names = [frame.name.rpartition("#")[2] for frame in walked.stack.frames]
    calls = {"const_added": ["const_added", "spin"]}.get(way, ["load_inner", "require"])
    assert names[names.index(calls[0]) :][:2] == calls


@pytest.mark.parametrize("name", rubies.EACH)
def test_a_moving_frame_above_several_unsure_ones_is_clean(name: str) -> None:
    """The instruction that sets a constant does not name ``Warning.warn``, so its frame
    is unsure, and ``spin`` moves."""
    with rubies.running(name, "stacks/autoloading.rb", "warn") as process:
        vm = process.vm()
        thread = vm.threads()[0]
        end = time.monotonic() + 60
        names = [""]
        while names[-1] != "Object#spin":  # at first, it may still be within `puts`
            assert time.monotonic() < end, (names, vm.counts)
            walked = vm.sample(thread)
            if walked and not walked.flags:
                names = [frame.name for frame in walked.stack.frames]
    assert names.count("Warning.warn") == 2


class CountingMemory(ProcessMemory):
    """A memory that counts its gathers."""

    gathers = 0

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.gathers += 1
        return super().gather(ranges)


@pytest.mark.parametrize("name", rubies.EACH)
def test_a_switch_to_a_fiber_that_has_not_begun_is_flagged(name: str) -> None:
    """A running thread then has a stack without any frame of Ruby code."""
    with rubies.running(name, "stacks/stack_tags.rb", str(tags.LEVELS)) as process:
        counting = CountingMemory(process.pid)
        vm = process.vm(counting)
        offsets, u64 = vm.layout.offsets, vm.values.u64
        thread = vm.threads()[0]
        while (walked := vm.sample(thread)) and walked.state is ThreadState.SLEEPING:
            pass  # it reports that it is ready
        with Process(process.pid) as target, paused(target):
            assert offsets.th_ec is not None
            ec = u64(thread.address + offsets.th_ec)
            stack = u64(ec + offsets.ec_vm_stack)
            end = stack + 8 * u64(ec + offsets.ec_vm_stack_size)
            with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(ec + offsets.ec_cfp)
                was = memory.read(8)
                memory.seek(ec + offsets.ec_cfp)
                memory.write(struct.pack("=Q", end - offsets.cfp_size))
                counting.gathers = 0
                walked = vm.sample(thread)
                assert vm.sample(thread) == walked
                memory.seek(ec + offsets.ec_cfp)
                memory.write(was)
    assert counting.gathers <= 6
    assert walked is not None
    assert walked.state is ThreadState.RUNNING
    assert walked.stack.frames == (CHANGED,)
    assert walked.flags is SampleFlags.TRIMMED


@pytest.mark.parametrize("place", ["innermost", "outermost"])
@pytest.mark.parametrize("name", rubies.EACH)
def test_a_sleeping_stack_not_understood_costs_little(name: str, place: str) -> None:
    """One of its iseqs is corrupted in the target itself: its type does not exist."""
    with rubies.running(name, "stacks/stack_zoo.rb") as process:
        vm = process.vm()
        thread = next(one for one in vm.threads() if one.name == "blocks")
        vm.sample(thread)
        iseqs = [node.iseq for node in vm._tracks[thread.address].nodes if node.iseq]
        spoil(process, iseqs[0 if place == "outermost" else -1].address)
        memory = CountingMemory(process.pid)
        vm = process.vm(memory)
        found = [vm.sample(thread)]
        assert memory.gathers <= 10
        memory.gathers = 0
        found += [vm.sample(thread), *vm.sample_all([thread])]
        assert memory.gathers == 2
        vm.revalidate()
        found.append(vm.sample(thread))
        assert memory.gathers <= 6
    counts = (vm.counts.clean, vm.counts.trimmed, vm.counts.failed)
    assert counts == (0, 4, 0)
    flags = [one.flags for one in found if one]
    assert flags == [SampleFlags.TRIMMED] * 4
    has_frames = [len(one.stack.frames) > 1 for one in found if one]
    assert has_frames == [place == "innermost"] * 4


def spoil(process: rubies.Running, iseq: int) -> None:
    """Give an iseq of the target the type 99."""
    vm = process.vm()
    offsets = vm.layout.offsets
    body = (
        iseq if offsets.iseq_body is None else vm.values.u64(iseq + offsets.iseq_body)
    )
    with open(f"/proc/{process.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(body + offsets.body_type)
        memory.write(struct.pack("=I", 99))


@pytest.mark.slow
@pytest.mark.parametrize("name", rubies.EACH)
def test_no_stack_is_wrong_and_not_flagged(name: str) -> None:
    """The target never rests, on another CPU. Its frames show which of them belong
    together."""
    with rubies.running(name, "stacks/stack_tags.rb", str(tags.LEVELS)) as process:
        os.sched_setaffinity(process.pid, {0})
        vm = process.vm()
        thread = vm.threads()[0]
        wrong = []
        # The necessary number of samples depends on the machine's load. The bench
        # measures it on a quiet machine.
        while vm.counts.clean < times(50_000):
            walked = vm.sample(thread)
            if walked is not None and not walked.flags:
                wrong += filter(None, [tags.contradiction(walked.stack.frames)])
        assert wrong == []


@pytest.mark.parametrize("name", rubies.EACH)
def test_methods_of_collected_ones_at_the_same_places(name: str, root: None) -> None:
    """No frame has the name of a method that was at the same address before."""
    with rubies.running(name, "stacks/alone.rb") as process:
        vm = process.vm()
        main = vm.threads()[0]

        def shown() -> tuple[str, str]:
            """Return an object and the name of its method's frame."""
            target = process.target
            said = target.step("next")
            target.wait_until_it_reads()
            walked = vm.sample(main)
            target.tell()
            assert walked is not None
            return said, walked.stack.frames[-2].name

        for _ in range(1000):
            shown()
        process.target.step("late")
        found = [shown() for _ in range(1000)]
    assert [one for one in found if one[1] != f"{one[0]}.alone"] == []
