"""More descriptors than select(2) takes: one process traces hundreds of targets."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from processes import Target
from rbtrace_py.agent.arming import Selector
from rbtrace_py.aggregate.calls import CallEventKind
from rbtrace_py.linux.readable import readable
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.methods.tables import Methods
from rbtrace_py.session.targets.targets import Targets

HELD = 1100
"""Number of descriptors to hold. select takes 1024."""
ROOM = 2048


@contextmanager
def holding() -> Iterator[None]:
    """Hold ``HELD`` descriptors, opened after a target's own."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < ROOM:
        pytest.skip(f"this takes {ROOM} descriptors, and {before[1]} are allowed")
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(ROOM, before[0]), before[1]))
        for _ in range(HELD):
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        yield


def test_readable() -> None:
    with holding(), ExitStack() as stack:
        ends = [os.pipe() for _ in range(3)]
        for end in sum(ends, ()):
            stack.callback(os.close, end)
        sources = [read for read, _ in ends]
        assert min(sources) > 1024
        assert readable(sources, 0) == []
        for _, write in ends[:2]:
            os.write(write, b".")
        assert readable(sources, 60) == sources[:2]


def test_calls(start: Callable[..., Target]) -> None:
    target = start("methods/calls.rb")
    options = CallsOptions(select=[Selector(owner="Tiny")])
    with (
        holding(),
        closing(Targets.from_pids([target.pid])) as targets,
        closing(Calls(targets, options)) as session,
    ):
        session.start()
        # It waits for events and notices the end.
        assert list(session.events(0.01)) == []
        target.step("last")
        target.tell("exit")
        found = []
        while not session.is_over:
            found += list(session.events(0.1))
    assert [told.event.what for told in found] == [
        CallEventKind.ENTERED,
        CallEventKind.RETURNED,
    ]


def test_methods(start: Callable[..., Target]) -> None:
    target = start("methods/methods.rb")
    with (
        holding(),
        closing(Targets.from_pids([target.pid])) as targets,
        Methods(targets, "count", ["raise"]) as session,
    ):
        session.wait(0.01)
        target.step("raise")
        session.finish()
        (group,) = session.snapshot().groups
    assert group.count == 30
