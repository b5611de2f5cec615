"""Idle samples, and reports that leave out only these."""

from __future__ import annotations

import pytest

from rbtrace_py.aggregate.idle import is_idle, without_idle
from rbtrace_py.aggregate.profile import Profile
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.aggregate.sourcepaths import gem_path, is_library
from rbtrace_py.aggregate.stacks import StackCounts
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.model.stacks import Frame, FrameKind, Sample, ThreadState
from sample_makers import sample, stack

GEM = "/var/lib/gems/3.1.0/gems/puma-5.6.5/lib/puma/thread_pool.rb"
STANDARD = "/usr/lib/ruby/3.1.0/timeout.rb"
OWN = "/srv/shop/app/job.rb"
POOL = f"block in Puma::ThreadPool#spawn_thread@{GEM}:117"
SLEEP = f"c!Thread::Mutex#sleep@{GEM}:133"
WAIT = f"c!Thread::ConditionVariable#wait@{GEM}:133"


def idle(*texts: str, state: ThreadState = ThreadState.SLEEPING) -> bool:
    return is_idle(state, stack(*texts).frames)


@pytest.mark.parametrize(
    "inner",
    [
        (WAIT, SLEEP),
        (WAIT,),
        (f"c!Thread::Queue#pop@{GEM}:1",),
        (f"c!Thread::SizedQueue#shift@{GEM}:1",),
        (f"c!IO.select@{GEM}:1",),
        (f"c!Kernel#select@{GEM}:1",),
        (f"c!NIO::Selector#select@{GEM}:1",),
        (f"c!TCPServer#accept@{GEM}:1",),
        (f"c!IO::Event::Selector::EPoll#select@{GEM}:1",),
    ],
)
def test_idle(inner: tuple[str, ...]) -> None:
    assert idle(POOL, *inner)
    assert idle(f"block in Timeout.start@{STANDARD}:99", *inner)
    starter = ("<main>@/usr/bin/puma:25", "c!Kernel#load@/usr/bin/puma:25")
    assert idle(*starter, POOL, *inner)
    assert not idle(f"Job#work@{OWN}:4", POOL, *inner)
    assert not idle(POOL, f"Job#work@{OWN}:4", *inner)
    assert not idle("<main>@/srv/shop/bin/worker:3", *inner)
    assert not idle("<main>@-e:1", POOL, *inner)
    for state in set(ThreadState) - {ThreadState.SLEEPING}:
        assert not idle(POOL, *inner, state=state)
    in_kernel = ("k!do_futex_[k]", "k!schedule_[k]", "m!(queue)")
    assert idle(POOL, *inner, *in_kernel)
    assert not idle(POOL, f"Job#work@{OWN}:4", *in_kernel)


def test_the_thread_of_our_agent() -> None:
    """The gem may be anywhere, and loaded in any way."""
    for path in (OWN, "(eval)"):
        frames = [f"{one}@{path}:1" for one in (
            "block in Tracepoint::Agent::Server#start",
            "Tracepoint::Agent::Server#accept",
            "c!Thread.handle_interrupt",
            "block in Tracepoint::Agent::Server#await_connection",
            "c!IO.select",
        )]  # fmt: skip
        assert idle(*frames)
        assert not idle(*frames, f"Job#work@{OWN}:4")


def test_the_thread_of_our_plugin_for_puma() -> None:
    """An application that runs in a checkout loads it from outside any gem."""
    frames = [f"{one}@/src/ruby/lib/tracepoint/puma.rb:1" for one in (
        "block in Tracepoint::Puma.sampler",
        "Tracepoint::Puma.sample",
        "c!Kernel#loop",
        "block in Tracepoint::Puma.sample",
        "c!Thread::Mutex#synchronize",
        "block (2 levels) in Tracepoint::Puma.sample",
        "c!Thread::ConditionVariable#wait",
    )]  # fmt: skip
    assert idle(*frames)
    assert not idle(f"Job#work@{OWN}:4", *frames)


def test_a_method_that_ruby_has_in_ruby() -> None:
    """Queue#pop is such a method from Ruby 3.2 on."""
    path, name = "<internal:thread_sync>", "Thread::Queue#pop"
    pop = Frame(FrameKind.RUBY, name, "pop", path, 18)
    assert is_idle(ThreadState.SLEEPING, (*stack(POOL).frames, pop))
    for own in (f"Job#work@{OWN}:4", "<main>@/srv/shop/bin/worker:3"):
        assert not is_idle(ThreadState.SLEEPING, (*stack(own).frames, pop))


@pytest.mark.parametrize(
    "inner",
    [
        (SLEEP,),
        (f"c!Thread::Mutex#synchronize@{GEM}:1", SLEEP),
        (f"c!Thread::Mutex#lock@{GEM}:1",),
        (f"c!IO#read@{GEM}:1",),
        (f"Relation#select@{GEM}:1",),
        (),
    ],
)
def test_not_idle(inner: tuple[str, ...]) -> None:
    assert not idle(POOL, *inner)
    assert not idle(*inner)


@pytest.mark.parametrize("name", ["Thread#join", "Kernel#sleep", "IO#wait_readable"])
def test_a_gem_alone_with_itself(name: str) -> None:
    """Puma's reaper, its main thread, and its cluster call no other code."""
    inner = f"c!{name}@{GEM}:1"
    assert idle(POOL, inner)
    assert idle(POOL, inner, "m!(sleep)")
    assert not idle(inner)
    for other in (
        f"Job#work@{OWN}:4",
        f"block in Timeout.start@{STANDARD}:99",
        "Rack::Sendfile#call@/var/lib/gems/3.1.0/gems/rack-2.2.4/lib/rack/sendfile.rb:1",
    ):
        assert not idle(POOL, other, inner)
    starter = ("<main>@/usr/bin/puma:25", "c!Kernel#load@/usr/bin/puma:25")
    assert idle(*starter, POOL, inner) is (name != "Kernel#sleep")
    assert not idle(*starter, inner)
    rails = "/var/lib/gems/3.1.0/gems/activesupport-6.1.7/lib/fork_tracker.rb"
    forked = [f"Fork#fork@{rails}:1", f"c!Kernel#fork@{rails}:1"]
    assert idle(POOL, *forked, f"block in Fork#fork@{rails}:1", POOL, inner)


@pytest.mark.parametrize(
    ("path", "gem"),
    [
        (GEM, ("puma-5.6.5", "lib/puma/thread_pool.rb")),
        (
            "/app/vendor/bundle/ruby/3.3.0/bundler/gems/rack-1a2b3c4d5e6f/lib/rack.rb",
            ("rack-1a2b3c4d5e6f", "lib/rack.rb"),
        ),
        ("/usr/lib/ruby/gems/3.1.0/gems/a-b-1.2.3.rc1/x.rb", ("a-b-1.2.3.rc1", "x.rb")),
        (STANDARD, None),
        (OWN, None),
        ("/srv/gems/shop/app.rb", None),
    ],
)
def test_gems(path: str, gem: tuple[str, str] | None) -> None:
    assert gem_path(path) == gem


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (GEM, True),
        (STANDARD, True),
        ("<internal:kernel>", True),
        ("/usr/lib/ruby/vendor_ruby/rack.rb", True),
        ("/usr/lib/x86_64-linux-gnu/ruby/3.1.0/socket.rb", True),
        ("/opt/ruby-4.0/lib/ruby/4.0.0/timeout.rb", True),
        ("/opt/ruby/lib/ruby/4.0.0+1/x86_64-linux/socket.rb", True),
        ("/usr/share/ruby/monitor.rb", True),
        ("/usr/share/ruby/vendor_ruby/rack.rb", True),
        ("/usr/share/shop/ruby/shop.rb", False),
        ("/srv/usr/share/ruby/shop.rb", False),
        ("/srv/lib/ruby/4.0.0+x/shop.rb", False),
        (OWN, False),
        ("app/job.rb", False),
        ("-e", False),
        ("(eval)", False),
        ("", False),
        ("/srv/lib/ruby/shop.rb", False),
    ],
)
def test_libraries(path: str, is_one: bool) -> None:
    assert is_library(path) is is_one


def profile(*samples: Sample) -> Profile:
    counts = StackCounts(Statistics(rate=99.0)).add_all(samples)
    return Profile(counts, Meta(mode="wall"), lambda: samples)


def waiting() -> Sample:
    return sample(POOL, WAIT, SLEEP, state=ThreadState.SLEEPING)


def test_a_report_has_the_others_alone() -> None:
    busy = sample(f"Job#work@{OWN}:4")
    whole = profile(waiting(), busy, waiting(), waiting())
    found = without_idle(whole)
    assert found.counts.weight == 1
    assert found.counts.statistics.idle == 3
    assert found.counts.statistics.samples == 4
    assert list(found.stream()) == [busy]
    assert whole.counts.weight == 4
    assert whole.counts.statistics.idle == 0


def test_where_all_are_idle_they_are_shown() -> None:
    whole = profile(waiting(), waiting())
    assert without_idle(whole) is whole
