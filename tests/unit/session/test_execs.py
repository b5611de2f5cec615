"""A process that executes another program at an awkward moment is not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from processes import TARGETS, Target, await_state
from rbtrace_py.model.stacks import Sample
from rbtrace_py.rubyvm.threads import VmThread
from rbtrace_py.session.stacks import ruby_process
from rbtrace_py.session.stacks.ruby_process import MEMORY_MODES, SamplingMode
from rbtrace_py.session.stacks.sampling import Sampling
from rbtrace_py.session.stacks.sampling_options import SamplingOptions
from rbtrace_py.session.targets.targets import Targets

Start = Callable[..., Target]


@pytest.fixture
def target(start: Start, root: None) -> Target:
    found = start("stacks/turning.rb")
    await_state(found.pid, "S")
    return found


@pytest.fixture(autouse=True)
def _lists_are_read_for_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruby_process, "_SECONDS_BETWEEN_LISTS", 1e9)


@pytest.fixture
def sampling(target: Target) -> Iterator[Sampling]:
    options = SamplingOptions(mode=SamplingMode.WALL)
    with Sampling(Targets.from_pids([target.pid]), options) as found:
        yield found
        found.targets.close()


def seen(sampling: Sampling) -> set[str]:
    """Return the second frame of each stack of a pass."""
    samples: list[Sample] = []
    sampling.sample(samples.append)
    return {sample.stack.frames[1].name for sample in samples}


def test_an_exec_between_the_list_and_the_first_thread_on_it(
    target: Target, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list's head existed, but the entries after it were gone."""
    assert seen(sampling) == {"First.stand"}
    (ruby,) = sampling.rubies
    threads = ruby.vm._threads
    read_thread = threads._thread

    def turned(
        address: int, ractor: int, is_main: bool, running: int
    ) -> VmThread | None:
        monkeypatch.setattr(threads, "_thread", read_thread)
        assert target.step("again") == "done again"
        return read_thread(address, ractor, is_main, running)

    with monkeypatch.context() as patch:
        patch.setattr(ruby.vm, "has_other_threads", lambda: True)
        ruby._listing_ns = 0  # it is time
        monkeypatch.setattr(threads, "_thread", turned)
        assert seen(sampling) == set()
    ruby._listing_ns = 0
    assert seen(sampling) == set()
    target.wait_until_it_reads()
    sampling.refresh()
    assert seen(sampling) == {"Second.stand"}


@pytest.mark.parametrize("words", [(), ("setarch", "-R")])
@pytest.mark.parametrize("mode", MEMORY_MODES)
def test_an_exec_is_noticed_whatever_is_read_then(
    root: None, words: tuple[str, ...], mode: SamplingMode
) -> None:
    """No stack may be read, as the thread sleeps, or one may exist at the same address.

    The long argument is missing in the new program, so its other data are elsewhere.
    """
    command = (*words, "ruby", str(TARGETS / "stacks/turning.rb"), "0" * 64)
    with (
        closing(Target(*command)) as target,
        closing(Targets.from_pids([target.pid])) as targets,
        Sampling(targets, SamplingOptions(mode=mode)) as sampling,
    ):
        (ruby,) = sampling.rubies
        sampling.refresh()
        assert sampling.rubies == (ruby,)
        assert target.step("again") == "done again"
        ruby._listing_ns = 0  # it is time
        sampling.sample(lambda sample: None)
        sampling.refresh()
        (other,) = sampling.rubies
        assert other is not ruby
        target.wait_until_it_reads()
        (sample,) = other.samples(SamplingMode.WALL)
        assert sample.stack.frames[1].name == "Second.stand"
