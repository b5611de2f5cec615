"""Loading the agent into running processes, and taking it out of service."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from rbtrace_py.agent.attempt import Step
from rbtrace_py.agent.client import Agent
from rbtrace_py.agent.hook import hook
from rbtrace_py.agent.inject import check
from rbtrace_py.agent.loading import (
    Loaded,
    agent_files,
    alone,
    load_agent,
)
from rbtrace_py.agent.place import NoAgent, connect
from rbtrace_py.agent.protocol import BrokenAgent
from rbtrace_py.linux.backoff import Backoff
from rbtrace_py.linux.cgroup_limits import thread_room
from rbtrace_py.linux.process import Process, gone
from rbtrace_py.linux.ptrace.seccomp import can_read_filters
from rbtrace_py.model.attach import AttachResult, Cost, Detached
from rbtrace_py.rubyvm.detect import find_ruby, find_version
from rbtrace_py.session.inside.commands import (
    ask_each,
    processes,
    require_unread_filter,
)
from rbtrace_py.session.inside.injection import ruby_addresses
from rbtrace_py.session.targets.confirmation import Confirm, accept_none, require
from rbtrace_py.session.targets.targets import Targets

ATTACH_SECONDS = 60.0
"""Time limit in seconds. Busy threads keep the GVL for 0.1 s each, repeatedly."""
DETACH_SECONDS = 10.0
MOST_SECONDS = 3600.0

Say = Callable[[str], None]
"""Receives a line about an action before it is done."""

_SHORTEST_POLL, _LONGEST_POLL = 0.005, 0.1
_MOST_SAID = 512


def attach(
    process: Process,
    say: Say,
    limit: float = ATTACH_SECONDS,
    with_hook: bool = True,
    at: Step = lambda step: None,
    confirm: Confirm = accept_none,
) -> AttachResult:
    """Load the agent into ``process``, unless it is loaded.

    Args:
        process: The process.
        say: Receives a line before the process is paused.
        limit: Time limit in seconds.
        with_hook: Include method events, for which a C compiler is needed once.
        at: Called at each step.
        confirm: Called if the process has a seccomp filter that cannot be read.

    Returns:
        The agent's description, and the cost of loading.

    Raises:
        NotConfirmed, Refused, NotRuby, NotBuilt, NotPermitted, NoPlace, NotLoaded,
            NotAcknowledged, NoSuchTarget, BrokenAgent
    """
    deadline = time.monotonic() + limit
    with alone(process, deadline):
        hello = _hello(process)
        if hello is not None:
            return _attached(process, hello, None)
        # Find all problems before anything is reported or done.
        ruby = ruby_addresses(process)
        check(process, ruby)
        if ruby.filters and not can_read_filters():
            require_unread_filter(process, confirm)
            deadline = time.monotonic() + limit  # the user may have taken long
        files = agent_files(hook() if with_hook else None)
        say(
            f"pausing process {process.pid} for about a millisecond (longer on a"
            " busy machine) to load the agent: a sleeping thread and a socket"
        )
        left = max(0.0, deadline - time.monotonic())
        loaded = load_agent(process, ruby, files, left, at)
        return _attached(process, loaded.hello, _cost(loaded))


def attach_all(targets: Targets, say: Say, confirm: Confirm) -> list[Process]:
    """Load the agent into all targets, and return the processes with an agent.

    Children that cannot load it are skipped.

    Args:
        targets: The processes.
        say: Receives lines about actions and skipped children.
        confirm: Called with risks.
    """
    found = processes(targets)

    def ask(process: Process) -> AttachResult:
        return attach(process, say, confirm=confirm)

    return [process for process, _ in ask_each(targets, found, ask, say)]


def detach(
    process: Process, confirm: Confirm = accept_none, limit: float = DETACH_SECONDS
) -> Detached:
    """Take the agent in ``process`` out of service.

    Args:
        process: The process.
        confirm: Called if this ends another tracer's session.
        limit: Time limit in seconds.

    Returns:
        The process, and the PID of the other tracer, if any.

    Raises:
        NoAgent, NotConfirmed, BrokenAgent, NotPermitted, NoSuchTarget
    """
    deadline = time.monotonic() + limit
    with alone(process, deadline):
        with Agent(process, needs_thread=_hangs_without_threads(process)) as agent:
            tracer = agent.hello.get("armed_by")
            tracer = tracer if type(tracer) is int else None
            if tracer is not None:
                require(
                    confirm,
                    f"process {tracer} is tracing process {process.pid}"
                    " through the agent",
                    "End that session first, or use --yes",
                )
                deadline = time.monotonic() + limit  # the user may have taken long
            # The agent may close the connection before it confirms the stop.
            with suppress(BrokenAgent):
                agent.call("stop", seconds=limit)
        _await_silence(process, deadline)
    return Detached(process.pid, tracer)


def _hangs_without_threads(process: Process) -> bool:
    """Return whether it cannot start threads and runs Ruby 3.3, which then hangs."""
    if thread_room(process) != 0:
        return False
    with find_ruby(process) as ruby:
        return find_version(ruby).minor == (3, 3)


def _await_silence(process: Process, deadline: float) -> None:
    backoff = Backoff(_SHORTEST_POLL, _LONGEST_POLL)
    while _still_listens(process):
        if time.monotonic() > deadline:
            raise BrokenAgent(f"the agent in process {process.pid} did not stop")
        if process.wait(backoff.pause()):
            raise gone(process.pid)


def _still_listens(process: Process) -> bool:
    """Return whether it accepts connections. It may stop before it answers."""
    try:
        connect(process).close()
    except NoAgent:
        return False
    return True


def _hello(process: Process) -> Mapping[str, object] | None:
    """Return the agent's hello; None: it is not loaded."""
    try:
        with Agent(process) as agent:
            return dict(agent.hello)
    except NoAgent:
        return None


def _cost(loaded: Loaded) -> Cost:
    found = loaded.injection
    stopped, longest = found.stopped_ns, found.longest_ns
    return Cost(found.attempts, stopped, longest, loaded.answer_ns)


def _attached(
    process: Process, hello: Mapping[str, object], cost: Cost | None
) -> AttachResult:
    """Convert the agent's answer, which may contain any values."""
    reason = None if hello.get("native") is True else _text(hello, "native_reason")
    return AttachResult(process.pid, cost, _text(hello, "description"), reason)


def _text(hello: Mapping[str, object], name: str) -> str:
    return str(hello.get(name) or "unknown")[:_MOST_SAID]
