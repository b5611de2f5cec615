"""Tracking a Ruby process: little work if nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

import rubies as ours
from processes import Target, await_state
from rbtrace_py.errors import NotPermitted, UnknownRuby, VmNotStarted
from rbtrace_py.linux.process import Process
from rbtrace_py.model.stacks import Sample, ThreadState
from rbtrace_py.rubyvm.attach import Attached
from rbtrace_py.rubyvm.threads import VmThread
from rbtrace_py.rubyvm.vm import Walked
from rbtrace_py.session.stacks import ruby_process
from rbtrace_py.session.stacks import sampling as sampling_module
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import EngineChoice, SamplingOptions
from rbtrace_py.session.targets.targets import Targets

Start = Callable[..., Target]


@pytest.fixture
def ruby(start: Start, root: None) -> RubyProcess:
    target = start("stacks/states.rb", "0")
    target.wait_until_it_reads()
    return RubyProcess(Process(target.pid))


@pytest.fixture
def listed(ruby: RubyProcess, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many threads each reading of the VM's list returned."""
    found: list[int] = []
    threads = ruby.vm.threads

    def counted() -> list[VmThread]:
        answer = threads()
        found.append(len(answer))
        return answer

    monkeypatch.setattr(ruby.vm, "threads", counted)
    return found


def test_a_refresh_without_changes_does_not_read_the_list(
    ruby: RubyProcess, listed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruby_process, "_SECONDS_BETWEEN_LISTS", 1e9)
    for _ in range(5):
        ruby.refresh()
    assert listed == []


def test_the_list_is_read_in_any_case_now_and_then(
    ruby: RubyProcess, listed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruby_process, "_SECONDS_BETWEEN_LISTS", 0)
    ruby.refresh()
    assert listed == [3]


def test_an_unreadable_stack_causes_a_read_of_the_list(
    ruby: RubyProcess, listed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruby_process, "_SECONDS_BETWEEN_LISTS", 1e9)
    monkeypatch.setattr(ruby.vm, "sample_all", lambda threads: [None] * len(threads))
    ruby._listing_ns = 10**15  # it is not time to check which of them are alive
    assert ruby.samples(SamplingMode.WALL) == []
    ruby.refresh()
    assert listed == [3]
    assert ruby.broken_refreshes == 1
    assert ruby.take_failed() == 3
    monkeypatch.undo()
    ruby.refresh()
    assert ruby.broken_refreshes == 0


def count_reads(ruby: RubyProcess, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the kernel ID of each thread whose stack is read."""
    found: list[int] = []
    sample, sample_all = ruby.vm.sample, ruby.vm.sample_all

    def counted(threads: list[VmThread]) -> list[Walked | None]:
        found.extend(thread.tid or 0 for thread in threads)
        return sample_all(threads)

    def counted_one(thread: VmThread) -> Walked | None:
        found.append(thread.tid or 0)
        return sample(thread)

    monkeypatch.setattr(ruby.vm, "sample_all", counted)
    monkeypatch.setattr(ruby.vm, "sample", counted_one)
    return found


@pytest.fixture
def read(ruby: RubyProcess, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return count_reads(ruby, monkeypatch)


def test_a_stack_is_read_again_only_once_its_thread_ran(
    start: Start, root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = start("stacks/states.rb", "0")
    target.wait_until_it_reads()
    with Process(target.pid) as process, RubyProcess(process) as ruby:
        read = count_reads(ruby, monkeypatch)
        first = ruby.samples(SamplingMode.WALL)
        assert len(set(read)) == len(read) == 3
        read.clear()
        again = [ruby.samples(SamplingMode.WALL) for _ in range(5)]
        assert read == []
        stacks = {one.stack for one in first}
        assert {one.stack for found in again for one in found} == stacks
        assert list(map(len, again)) == [3] * 5
        assert target.step("go") == "done"
        target.wait_until_it_reads()
        ruby.samples(SamplingMode.WALL)
        assert read == [target.pid]


def test_a_stack_is_read_again_after_a_read_that_failed(
    ruby: RubyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruby.samples(SamplingMode.WALL)
    monkeypatch.setattr(ruby.vm, "sample_all", fail)
    ruby._sleep_when_read.clear()
    with pytest.raises(NotPermitted):
        ruby.samples(SamplingMode.WALL)
    monkeypatch.undo()
    read = count_reads(ruby, monkeypatch)
    assert len(ruby.samples(SamplingMode.WALL)) == 3
    assert len(read) == 3


def fail(threads: list[VmThread]) -> list[Walked | None]:
    raise NotPermitted("no")


def test_a_thread_with_the_gvl_is_read_each_time(
    ruby: RubyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may have the GVL by now, which the thread's own memory does not
    show."""
    first = ruby.samples(SamplingMode.WALL)
    track = ruby.vm._track(first[0].thread.address)
    track.walked = track.walked._replace(state=ThreadState.RUNNING)
    read = count_reads(ruby, monkeypatch)
    ruby.samples(SamplingMode.WALL)
    assert read == [first[0].thread.tid]


def test_a_stack_is_read_again_after_its_code_was_checked(
    ruby: RubyProcess, read: list[int]
) -> None:
    ruby.samples(SamplingMode.WALL)
    ruby.samples(SamplingMode.WALL)
    read.clear()
    ruby.vm._tree.generation += 1  # some code is different
    ruby.samples(SamplingMode.WALL)
    assert len(read) == 3


@pytest.fixture(params=ours.EACH)
def brief(request: pytest.FixtureRequest, root: None) -> Iterator[ours.Running]:
    """A Ruby with a main thread, and a second thread that is replaced by another."""
    with ours.running(request.param, "stacks/brief.rb") as running:
        yield running


def depths(ruby: RubyProcess) -> list[int]:
    """Return the calls of deep on the stack of each thread that has any."""
    stacks = [sample.stack.frames for sample in ruby.samples(SamplingMode.WALL)]
    found = [sum(frame.name == "Object#deep" for frame in frames) for frames in stacks]
    return [depth for depth in found if depth]


def test_threads_that_come_and_go_between_two_looks_are_sampled(
    brief: ours.Running,
) -> None:
    with Process(brief.pid) as process, RubyProcess(process) as ruby:
        seen = [depths(ruby)]
        for _ in range(8):
            assert brief.target.step("next") == "done"
            ruby._listing_ns = 0  # it is time, however long the step took
            seen.append(depths(ruby))
        assert seen == [[number] for number in range(1, 10)]
        assert ruby.take_failed() == 0
        assert not ruby.vm.has_other_threads()


def test_a_thread_that_has_ended_is_no_loss(
    brief: ours.Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Process(brief.pid) as process, RubyProcess(process) as ruby:
        monkeypatch.setattr(ruby.vm, "has_other_threads", lambda: False)
        assert brief.target.step("next") == "done"
        ruby._listing_ns = 0
        assert depths(ruby) in ([], [2])  # its memory may belong to the next thread
        assert ruby.take_failed() == 0


def test_a_thread_is_known_while_ruby_keeps_its_kernel_thread(root: None) -> None:
    code = (
        "$stdout.sync = true; thread = Thread.new { sleep }; thread.name = 'ended';"
        " Thread.pass until thread.stop?; puts :ready; gets;"
        " thread.kill.join; puts :done; gets"
    )
    with (
        closing(Target("ruby", "-e", code)) as target,
        Process(target.pid) as process,
        RubyProcess(process) as ruby,
    ):
        before = dict(ruby.threads_by_tid)
        target.step("end")
        ruby._listing_ns = 0  # it is time, however long the step took
        ruby.find_threads()
        assert {thread.name for thread in ruby.threads} == {""}
        ruby.refresh()
        kept = before.keys() & process.threads()
        assert ruby.threads_by_tid == {tid: before[tid] for tid in kept}
        if ruby.version < "3.3":
            assert {thread.name for thread in ruby.threads_by_tid.values()} == {
                *("", "ended")
            }


def test_lists_take_a_bounded_part_of_the_time(
    ruby: RubyProcess, listed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruby.vm, "has_other_threads", lambda: True)
    ruby._listing_ns = 10**15
    ruby.samples(SamplingMode.WALL)
    assert listed == []
    ruby._listing_ns = 0
    ruby.samples(SamplingMode.WALL)
    assert listed == [3]


def wait_until_asleep(pid: int, tids: set[int]) -> None:
    """Wait until a thread sleeps, which it cannot report itself."""
    for tid in tids:
        await_state(pid, "S", tid)


def test_a_thread_that_slept_when_paused_is_not_a_cpu_sample(
    start: Start, root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause wakes all threads. On a busy machine, they are runnable long afterwards.

    Another pause in that time would not find them asleep.
    """
    target = start("stacks/states.rb", "1")
    target.wait_until_it_reads()
    with Process(target.pid) as process, RubyProcess(process) as ruby:
        tids = {thread.tid for thread in ruby.threads}
        sleepers = {t.tid for t in ruby.threads if t.name != "burner 0"}
        assert len(tids) == 4
        monkeypatch.setattr(ruby._tasks, "running", lambda asked: tids & set(asked))
        for _ in range(20):
            wait_until_asleep(target.pid, sleepers)
            samples = ruby.samples(SamplingMode.CPU, pause=True)
            assert {sample.thread.name for sample in samples} == {"burner 0"}
            wait_until_asleep(target.pid, sleepers)
            walls = ruby.samples(SamplingMode.WALL, pause=True)
            states = {sample.thread.name: sample.state for sample in walls}
            assert states.pop("burner 0") is ThreadState.RUNNING
            assert ThreadState.RUNNING not in states.values()


def test_a_thread_stays_the_same_object(ruby: RubyProcess) -> None:
    before = ruby.threads
    ruby.samples(SamplingMode.WALL)
    ruby._listed_ns = 0
    ruby.refresh()
    assert [id(thread) for thread in ruby.threads] == [id(t) for t in before]


@pytest.mark.parametrize(
    ("vm", "is_on_cpu", "has_no_task", "expected"),
    [
        (ThreadState.SLEEPING, True, False, ThreadState.RUNNING),
        (ThreadState.WAITING, False, False, ThreadState.WAITING),
        (ThreadState.RUNNING, False, False, ThreadState.SLEEPING),
        (ThreadState.RUNNING, False, True, ThreadState.RUNNING),
        (ThreadState.SLEEPING, False, False, ThreadState.SLEEPING),
    ],
)
def test_states(
    vm: ThreadState, is_on_cpu: bool, has_no_task: bool, expected: ThreadState
) -> None:
    on_cpu = None if has_no_task else is_on_cpu
    assert ruby_process.state_of(vm, on_cpu) is expected


@pytest.fixture
def no_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a Ruby have its VM but no names yet."""
    whole = ruby_process.attach

    def without(process: Process, *given: Any) -> Attached:
        return replace(whole(process, *given), symbols=None)

    monkeypatch.setattr(ruby_process, "attach", without)


@pytest.mark.usefixtures("no_symbols", "root")
def test_a_ruby_without_names_is_waited_for_however_old_its_process_is(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been another program before: the time of an exec is unknown."""
    monkeypatch.setattr(Process, "age", 1000.0)
    with Process(start("stacks/states.rb", "0").pid) as process:
        with pytest.raises(VmNotStarted, match="is still starting"):
            RubyProcess(process)
        monkeypatch.setattr(ruby_process, "_YOUNG_SECONDS", 0)
        with RubyProcess(process) as ruby:
            assert ruby.threads


@pytest.mark.parametrize("others", [0, 1])
def test_a_thread_that_fell_asleep_before_its_stack_was_read_is_no_sample(
    others: int, ruby: RubyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel saw it on a CPU some microseconds before."""
    napping = next(one for one in ruby.threads if one.name == "napping")
    main = next(one for one in ruby.threads if one.is_main)
    seen = {napping.tid, *([main.tid] if others else [])}
    running = ruby._tasks.running
    answers = [seen]
    monkeypatch.setattr(
        ruby._tasks, "running", lambda tids: answers.pop() if answers else running(tids)
    )
    assert ruby.samples(SamplingMode.CPU) == []
    assert ruby.take_failed() == 0


def test_a_process_whose_stacks_become_untrusted_is_left_out(
    start: Start, root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier samples are kept."""
    target = start("stacks/turning.rb", "0")
    options = SamplingOptions(mode=SamplingMode.WALL)
    samples: list[Sample] = []

    def refuse(*_: object) -> None:
        raise UnknownRuby("it runs ZJIT", "use a newer rbtrace-py")

    with (
        closing(Targets.from_pids([target.pid])) as targets,
        Sampling(targets, options) as sampling,
    ):
        sampling.sample(samples.append)
        monkeypatch.setattr(sampling_module, "_YOUNG_SECONDS", 0)
        monkeypatch.setattr(ruby_process, "check_zjit", refuse)
        sampling.refresh()
        assert (sampling.rubies, sampling.is_over) == ((), True)
        assert sampling.notes == [f"skipping process {target.pid}: it runs ZJIT"]
    assert len(samples) == 1


@pytest.fixture
def sampling(start: Start, root: None) -> Iterator[Sampling]:
    """A sampling of one process with one thread, from memory in wall mode."""
    target = start("stacks/turning.rb", "0")
    options = SamplingOptions(mode=SamplingMode.WALL, engine=EngineChoice.MEMORY)
    with (
        closing(Targets.from_pids([target.pid])) as targets,
        Sampling(targets, options) as entered,
    ):
        yield entered


def test_a_failed_read_after_a_successful_one_is_noted(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples may still be in a batch that has no weights yet."""
    (ruby,) = sampling.rubies
    taken: list[Sample] = []
    sampling.sample(taken.append)
    monkeypatch.setattr(ruby.vm, "sample", fail)
    ruby._sleep_when_read.clear()
    sampling.sample(taken.append)
    assert len(taken) == 1
    assert any("could not be read at times: no" in one for one in sampling.notes)


def test_a_first_read_that_fails_ends_the_sampling(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ruby,) = sampling.rubies
    monkeypatch.setattr(ruby.vm, "sample", fail)
    with pytest.raises(NotPermitted):
        sampling.sample([].append)
