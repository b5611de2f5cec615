"""Ways to walk stacks that other kernels and programs need. This kernel has them,
too."""

from __future__ import annotations

import errno
import os
import re
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import LIB, TARGETS, Target, await_state, comes_true, read_line
from rbtrace_py.bpf import attach, stack_walker
from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import SCRATCHES
from rbtrace_py.bpf.compiler import compile_program
from rbtrace_py.errors import BpfError, RbtraceError, UnknownRuby
from rbtrace_py.linux.btf import Btf
from rbtrace_py.linux.kernel_frames import KernelSymbols
from rbtrace_py.model.stack_walk import MOST_KERNEL_FRAMES
from rbtrace_py.model.stacks import FrameKind, Sample, ThreadState
from rbtrace_py.rubyvm import tls
from rbtrace_py.rubyvm.vm import RubyVM
from rbtrace_py.session.stacks import stack_events
from rbtrace_py.session.stacks.kernel_stacks import KernelStacks
from rbtrace_py.session.stacks.ruby_process import SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import (
    EngineChoice,
    EventChoice,
    SamplingOptions,
)
from rbtrace_py.session.stacks.sampling_passes import sampling_passes
from rbtrace_py.session.targets.targets import Targets
from ruby_builds import Build, running

pytestmark = pytest.mark.usefixtures("root")

REASONS = {
    "Waits#wait_sleep": "(sleep)",
    "Waits#wait_lock": "(lock)",
    "Waits#wait_socket": "(socket)",
    "Waits#wait_pipe": "(pipe)",
    "Waits#wait_child": "(child process)",
}
METHODS = (*REASONS, "Object#burn")
WALKED = TARGETS / "stacks/walked.rb"
MAY_GOTO = 0xE5
"""The operation of that instruction (BPF_JMP | BPF_JCOND)."""
BPF_STX = 3
INSTRUCTION = struct.Struct("<BBhi")
GET_STACK = INSTRUCTION.pack(0x85, 0, 0, 67)
"""The call of bpf_get_stack."""
EFAULT_AS_RESULT = INSTRUCTION.pack(0xB7, 0, 0, -errno.EFAULT)
"""Result in r0 of a failed call."""
MOST_AS_RESULT = INSTRUCTION.pack(0xB7, 0, 0, MOST_KERNEL_FRAMES * 8)
"""Result in r0 for the deepest stacks."""
_USERS = 26 * 8
"""Offset of ``users`` in ``struct scratch`` of ``stacks.c``."""


@contextmanager
def sampling(
    mode: SamplingMode,
    *pids: int,
    event: EventChoice | None = None,
    kernel_frames: bool = False,
    rate: float = 499,
    engine: EngineChoice = EngineChoice.BPF,
) -> Iterator[Sampling]:
    options = SamplingOptions(
        rate,
        mode,
        engine=engine,
        event=event,
        kernel_frames=kernel_frames,
    )
    with (
        closing(Targets.from_pids(list(pids))) as targets,
        Sampling(targets, options) as entered,
    ):
        yield entered


def bpf_engine(entered: Sampling) -> KernelStacks:
    assert isinstance(entered.engine, KernelStacks)
    return entered.engine


def weights(
    target: Target, step: str, mode: SamplingMode, kernel_frames: bool = False
) -> Counter[tuple[str, str]]:
    """Return the weights of a step by the method in METHODS and the innermost frame."""
    found: Counter[tuple[str, str]] = Counter()

    def add(sample: Sample) -> None:
        names = [frame.name for frame in sample.stack.frames] or [""]
        method = next((name for name in names if name in METHODS), "")
        found[method, names[-1]] += sample.weight

    with sampling(mode, target.pid, kernel_frames=kernel_frames) as entered:
        passes = sampling_passes(entered, add)
        answer = target.step(step)
        while answer != "done":
            answer = read_line(target.process.stdout)
        passes.finish()
    return found


Taken = Callable[[Sampling], None]


def calls_of_getppid(before: Taken = lambda entered: None) -> tuple[int, int]:
    """Return the weight of 1,000 calls in ``Events#ask``, and the number of failures.

    ``before`` is called once the sampling has been entered.
    """
    found: list[int] = []

    def add(sample: Sample) -> None:
        if "Events#ask" in [frame.name for frame in sample.stack.frames]:
            found.append(sample.weight)

    with (
        closing(Target("ruby", "-I", LIB, TARGETS / "stacks/events.rb")) as target,
        sampling(
            SamplingMode.EVENT, target.pid, event=EventChoice("uprobe:libc:getppid")
        ) as entered,
    ):
        before(entered)
        passes = sampling_passes(entered, add)
        assert target.step("parent 1000") == "done"
        passes.finish()
        return sum(found), entered.statistics.failed


def test_code_that_is_other_code_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is shown that may be another method's."""
    monkeypatch.setattr(RubyVM, "has_same_code", lambda *_: False)
    with closing(Target("ruby", WALKED)) as target:
        found = weights(target, "deep 40 0.2", SamplingMode.CPU)
    assert set(found) == {("", "(unresolved)")}


def assert_burnt() -> None:
    with closing(Target("ruby", WALKED)) as target:
        found = weights(target, "deep 40 0.5", SamplingMode.CPU)
        burnt = sum(found[one] for one in found if one[0] == "Object#burn")
        assert burnt == pytest.approx(0.5e9, rel=0.02), found


@pytest.mark.parametrize("way", stack_walker._WAYS, ids=["6.9", "5.19", "5.15", "5.11"])
def test_each_way(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_walker, "_WAYS", (way,))
    with closing(Target("ruby", TARGETS / "stacks/off_cpu.rb")) as target:
        found = weights(target, "waits 0.6", SamplingMode.WALL)
    for method, reason in REASONS.items():
        # The wait begins after its cause, on a busy machine by a while.
        assert found[method, reason] >= 0.3e9, found
    assert_burnt()
    with closing(Target("ruby", WALKED)) as target:
        found = weights(target, "zeros 0.5", SamplingMode.WALL, True)
    kernel = {leaf: n for (_, leaf), n in found.items() if leaf.endswith("_[k]")}
    zeros = sum(n for leaf, n in kernel.items() if "zero" in leaf)
    assert zeros >= 0.5 * sum(kernel.values()) > 0, found


@pytest.mark.rubies
def test_frames_of_zjit_on_an_older_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without may_goto, they are read from memory."""
    monkeypatch.setattr(stack_walker, "_WAYS", stack_walker._WAYS[1:2])
    found: Counter[str] = Counter()

    def add(sample: Sample) -> None:
        found[sample.stack.frames[-1].name] += 1

    with running(Build("4.1.0dev-shared", "zjit"), "stacks/spinning.rb") as target:
        with (
            pytest.raises(UnknownRuby, match="cannot walk frames of ZJIT"),
            sampling(SamplingMode.CPU, target.pid),
        ):
            pass
        auto = EngineChoice.AUTO
        with sampling(SamplingMode.CPU, target.pid, engine=auto) as entered:
            passes = sampling_passes(entered, add)
            passes.advance(time.monotonic() + 0.5, None)
            passes.finish()
            assert any("read from memory" in note for note in entered.notes)
    assert set(found) == {"Object#spin"}


def test_a_kernel_that_refuses_the_first_way(monkeypatch: pytest.MonkeyPatch) -> None:
    load, refused = sys_.load_program, []

    def older(kind: int, code: bytes, attach_type: int, name: str) -> int:
        if MAY_GOTO in code[::8]:
            refused.append(name)
            raise BpfError("the verifier does not know it")
        return load(kind, code, attach_type, name)

    monkeypatch.setattr(sys_, "load_program", older)
    assert_burnt()
    assert refused == ["on_tick"]


LACKS = {
    "BTF": (Btf.load.__func__, "__defaults__", ("/none",), "the kernel has no BTF"),
    "perf": (
        *(attach, "_TYPE_SOFTWARE", 1 << 20),
        "cannot open a perf event of each processor",
    ),
    "ring": (sys_, "MAP_TYPE_RINGBUF", 1 << 20, "cannot create the BPF map ring"),
}
"""By feature: the attribute to patch, its value that this kernel lacks, and the
message."""


@pytest.mark.parametrize("feature", LACKS)
def test_a_kernel_without_a_feature(
    feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *instead, said = LACKS[feature]
    monkeypatch.setattr(*instead)
    with (
        closing(Target("ruby", WALKED)) as target,
        closing(Targets.from_pids([target.pid])) as targets,
    ):
        with Sampling(targets, SamplingOptions(engine=EngineChoice.AUTO)) as chosen:
            (note,) = chosen.notes
        assert chosen.engine.name == "memory"
        with pytest.raises(RbtraceError, match=said) as refused:
            Sampling(targets, SamplingOptions(engine=EngineChoice.BPF)).__enter__()
    assert note.startswith(f"stacks are read from memory: {said}")
    assert "kernel" in refused.value.hint


def test_the_rate_is_known_if_memory_is_read_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BPF cannot walk the holders of a GVL whose queue is unknown."""
    walk_layout = RubyVM.walk_layout
    monkeypatch.setattr(
        RubyVM, "walk_layout", lambda *words: walk_layout(*words)._replace(gvl_node=0)
    )
    mode, engine = SamplingMode.GVL, EngineChoice.AUTO
    with (
        closing(Target("ruby", WALKED)) as target,
        sampling(mode, target.pid, engine=engine) as entered,
    ):
        assert (entered.engine.name, entered.statistics.rate) == ("memory", 499)


def test_a_kernel_without_uprobe_multi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys_, "ATTACH_TRACE_UPROBE_MULTI", 1 << 20)
    assert isinstance(attach.choose_attacher(), attach.PerfUprobes)
    assert calls_of_getppid() == (1000, 0)
    monkeypatch.setattr(attach, "_UPROBE_PMU", Path("/none"))
    with pytest.raises(BpfError, match="this kernel has no uprobes"):
        attach.choose_attacher()


@pytest.mark.parametrize("source", ["stacks.c", "events.c"])
def test_no_instruction_of_linux_5_12(source: str) -> None:
    """Until then, a store had no operation: 0 means add. may_goto exists from 6.9
    on."""
    flags = {"MAY_GOTO": 0, "SWITCHES": 1}
    for name, code in compile_program(source, flags).items():
        for at, (operation, _, _, immediate) in enumerate(
            INSTRUCTION.iter_unpack(code)
        ):
            assert operation & 7 != BPF_STX or not immediate, (name, at)
            assert operation != MAY_GOTO, (name, at)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (EFAULT_AS_RESULT, "lack the kernel's frames: it could not read them"),
        (
            MOST_AS_RESULT,
            "have 127 frames of the kernel, the most that it gives: older ones may be"
            " missing",
        ),
    ],
)
def test_a_kernel_that_gives_no_whole_stack(
    result: bytes, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Ruby stacks are kept, and a note counts those without kernel frames."""
    load, found = sys_.load_program, Counter[str]()

    def failing(kind: int, code: bytes, attach_type: int, name: str) -> int:
        code = code.replace(GET_STACK, result)
        return load(kind, code, attach_type, name)

    def add(sample: Sample) -> None:
        frames = [one for one in sample.stack.frames if one.kind != FrameKind.KERNEL]
        found[frames[-1].name] += sample.weight

    monkeypatch.setattr(sys_, "load_program", failing)
    with (
        closing(Target("ruby", WALKED)) as target,
        sampling(SamplingMode.CPU, target.pid, kernel_frames=True) as entered,
    ):
        passes = sampling_passes(entered, add)
        assert target.step("zeros 0.5") == "done"
        passes.finish()
        notes = [note for note in entered.notes if note.endswith(expected)]
        assert entered.statistics.failed == 0
        assert found.total() == pytest.approx(0.5e9, rel=0.02)
        samples = entered.statistics.samples
    assert found["IO#sysread"] > 0.8 * found.total()
    (note,) = notes
    match = re.fullmatch(rf"(\d+) samples {expected}", note)
    assert match
    assert 0.5 * samples < int(match[1]) <= samples


def test_programs_have_names_that_were_loaded_later() -> None:
    """Names are read at the first call."""
    symbols = KernelSymbols()
    program = "puts 'ready'; $stdout.flush; gets"
    with (
        closing(Target("ruby", "-e", program)) as target,
        sampling(SamplingMode.OFFCPU, target.pid),
    ):
        before = loaded_programs()
        found = {one: symbols.name(one + 8) for one in before}
        after = loaded_programs()
    # Programs of other processes may come and go meanwhile.
    lasting = {one for one in before if before[one] == after.get(one)}
    assert lasting
    for one in lasting:
        assert found[one] == f"{before[one]} [bpf]"


def loaded_programs() -> dict[int, str]:
    """Return the names of the programs that run at switches, by address."""
    listed = Path("/proc/kallsyms").read_text()
    rows = re.findall(r"^(\w+) t (bpf_prog_\w+_on_switch)\t", listed, re.MULTILINE)
    return {int(address, 16): name for address, name in rows}


@pytest.mark.parametrize("slept_before", [True, False])
def test_on_cpu_time_does_not_belong_to_the_method_that_waits_afterwards(
    slept_before: bool,
) -> None:
    """The threads wake to end, as the main one is killed, after the last stack is
    known. No tick is due yet."""
    program = """
      $stdout.sync = true; puts "ready"; gets
      6.times { Thread.new { sleep 0.01 }.join }
      puts "done"; gets"""
    found: dict[ThreadState, list[Sample]] = {one: [] for one in ThreadState}

    def add(sample: Sample) -> None:
        found[sample.state].append(sample)

    with (
        closing(Target("ruby", "-e", program)) as target,
        sampling(
            SamplingMode.WALL, target.pid, kernel_frames=True, rate=0.1
        ) as entered,
    ):
        kernel = bpf_engine(entered)
        assert slept_before or target.step("") == "done"
        target.wait_until_it_reads()  # or it is killed before its stack is named
        for _ in range(4):
            kernel.settle(add)
        target.process.kill()
        target.process.wait()
        kernel.settle(add)
        assert entered.statistics.failed == 0
    assert not found[ThreadState.RUNNING]
    leaves = {one.stack.frames[-1].name for one in found[ThreadState.RUNNABLE]}
    assert leaves <= {"(run queue)"}
    kinds = {one.stack.frames[-2].kind for one in found[ThreadState.SLEEPING]}
    assert kinds == {FrameKind.KERNEL}


@pytest.mark.parametrize("way", stack_walker.EVENT_WAYS, ids=["6.9", "5.11"])
@pytest.mark.parametrize("kind", ["", "perf"])
def test_each_way_at_events(
    way: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_events, "EVENT_WAYS", (way,))
    monkeypatch.setenv("RBTRACE_ATTACH", kind)
    assert calls_of_getppid() == (1000, 0)


def use(scratches: int) -> Taken:
    """Make preempted runs of other programs use scratch space on each CPU."""

    def take(entered: Sampling) -> None:
        scratch = bpf_engine(entered).walker.maps["scratches"]
        value = bytearray(scratch.spec.value_size)
        value[_USERS : _USERS + 8] = (1).to_bytes(8, "little")
        for place in range(scratch.spec.max_entries):
            if place % SCRATCHES < scratches:
                scratch.put(place.to_bytes(4, "little"), bytes(value))

    return take


def test_scratch_space_that_others_use() -> None:
    assert calls_of_getppid(use(SCRATCHES - 1)) == (1000, 0)


def test_no_scratch_space_is_a_loss() -> None:
    assert calls_of_getppid(use(SCRATCHES)) == (0, 1000)


def test_counts_wait_for_who_was_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that reports counting in an epoch is awaited, but not forever."""
    monkeypatch.setattr(stack_walker, "_LONGEST_SETTLING_SECONDS", 0.05)
    waited: list[float] = []

    def hold(entered: Sampling) -> None:
        walker = bpf_engine(entered).walker
        epoch = walker.maps["epoch"]
        for inside, least, most in ((1, 0.05, 1.0), (0, 0.0, 0.04)):
            for place in (1, 2):
                epoch.put(place.to_bytes(4, "little"), inside.to_bytes(8, "little"))
            began = time.monotonic()
            walker.counts()
            waited.append(time.monotonic() - began)
            assert least <= waited[-1] < most

    assert calls_of_getppid(hold) == (1000, 0)
    assert len(waited) == 2


def test_threads_that_are_found_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is as if libruby was opened later: the main thread is known at once."""
    monkeypatch.setattr(tls, "distance", lambda memory, threads: 0)
    assert_burnt()


@pytest.mark.parametrize("missed", [1, 64])
def test_what_fibers_hide_is_found_later(
    monkeypatch: pytest.MonkeyPatch, missed: int
) -> None:
    """This is as if a thread switched fibers while it was read."""
    distance, looks = tls.distance, iter(range(missed))
    monkeypatch.setattr(
        tls,
        "distance",
        lambda memory, threads: (
            0 if next(looks, None) is not None else distance(memory, threads)
        ),
    )
    program = "puts 'ready'; $stdout.flush; gets"
    with (
        closing(Target("ruby", "-e", program)) as target,
        sampling(SamplingMode.CPU, target.pid) as entered,
    ):
        engine = bpf_engine(entered)
        known = engine._layouts
        assert bool(known[target.pid][0]) == (missed == 1)
        entered.refresh()
        assert known[target.pid][0] < 0
        assert not engine._placed


@pytest.mark.parametrize("is_early", [True, False])
def test_a_thread_that_is_stopped(is_early: bool) -> None:
    """It is in the middle of Ruby code and does not wait in a system call."""

    def stop() -> int:
        os.kill(target.pid, signal.SIGSTOP)
        await_state(target.pid, "T")
        return time.monotonic_ns()

    found: Counter[str] = Counter()

    def add(sample: Sample) -> None:
        found[sample.stack.frames[-1].name] += sample.weight

    program = "puts 'ready'; $stdout.flush; nil while true"
    with closing(Target("ruby", "-e", program)) as target:
        if is_early:
            stop()
        before = time.monotonic_ns()
        with sampling(SamplingMode.WALL, target.pid) as entered:
            passes = sampling_passes(entered, add)
            since = time.monotonic_ns() if is_early else stop()
            passes.advance(time.monotonic() + 0.3, None)
            stopped = time.monotonic_ns() - since
            passes.finish()
        most = time.monotonic_ns() - before
    marker = "(running, not sampled)"  # it ran for a moment, usually without a tick
    assert found.keys() <= {"(stopped)", "(run queue)", "<main>", marker}
    assert stopped <= found["(stopped)"] <= most


def test_a_wait_ends_when_sampling_stops() -> None:
    """Stacks may be read much later on a busy machine."""
    waited: list[int] = []
    program = "puts 'ready'; $stdout.flush; gets"
    with (
        closing(Target("ruby", "-e", program)) as target,
        sampling(SamplingMode.WALL, target.pid) as entered,
    ):
        passes = sampling_passes(entered, lambda sample: waited.append(sample.weight))
        bpf_engine(entered).stop()
        passes.settle()
        elapsed = entered.statistics.ended_ns - entered.statistics.started_ns
    assert 0 < sum(waited) <= elapsed


def test_no_time_of_a_killed_process_stays_open() -> None:
    """Its main thread may end before the others do."""
    program = "10.times { Thread.new { sleep } }; puts 'ready'; $stdout.flush; gets"
    with (
        closing(Target("ruby", "-e", program)) as one,
        closing(Target("ruby", "-e", program)) as other,
        sampling(SamplingMode.OFFCPU, one.pid, other.pid) as entered,
    ):
        kernel = bpf_engine(entered)

        def pids() -> set[int]:
            return {stack.pid for stack in kernel.walker.open_intervals()}

        assert pids() == {one.pid, other.pid}
        os.kill(one.pid, signal.SIGKILL)
        assert comes_true(lambda: pids() == {other.pid})
