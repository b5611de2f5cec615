"""``calls`` of a target that has ended: the remaining events, and early stops."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from contextlib import closing

from commands import Tracer
from processes import TIMEOUT, Target, comes_true
from rbtrace_py.aggregate.calls import CallEventKind, ReportedCall
from rbtrace_py.cli import calls
from rbtrace_py.cli.common.stop import Stop
from rbtrace_py.session.event_session import BATCH
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.methods.selectors import selectors_of
from rbtrace_py.session.targets.targets import Targets

CALLS = 200_000
READ = 150_000
AHEAD = 10_000
"""More lines than a pipe and the buffers before it hold."""
LATE = 2 * BATCH
"""Number of events after which the hook is removed."""
SECONDS = 0.01


def test_one_signal_is_enough(
    start: Callable[..., Target], trace: Callable[..., Tracer]
) -> None:
    """The tracer waits for its reader and gets the signal after its target has
    ended."""
    target = start("methods/calls.rb")
    tracer = trace("calls", target.pid, "-m", "Tiny#call", "--buffer", 1 << 20)
    assert target.step("burst") == "done"
    output = tracer.process.stdout
    assert output is not None
    assert output.readline().startswith("Tiny#call <")  # its name is known now
    target.tell("exit")
    assert target.process.wait(TIMEOUT) == 0
    for _ in range(READ - 1):
        assert output.readline().startswith("Tiny#call <")
    tracer.process.send_signal(signal.SIGTERM)
    more = output.read().count("Tiny#call <")
    assert more < AHEAD
    _, err, code = tracer.result()
    *_, said, lost = err.splitlines()
    assert (said, code) == (f"{READ + more:,} calls", 0)
    found = re.fullmatch(r"  ([\d,]+) events were lost: .*", lost)
    assert found
    assert int(found[1].replace(",", "")) > CALLS - READ - AHEAD


class Slow:
    """A writer that takes longer for its first event than the duration."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._end = time.monotonic() + SECONDS
        self._written = 0

    def write(self, told: ReportedCall) -> int:
        self._written += 1
        if self._written == 1:
            assert comes_true(lambda: time.monotonic() > self._end)
        if self._written == LATE:
            assert self._target.step("burst") == "done"
        return int(told.event.what is CallEventKind.RETURNED)

    def flush(self) -> None: ...

    def end(self, has_all: bool) -> None: ...

    def last_words(self, document: dict[str, object]) -> None: ...


def test_a_duration_ends_before_its_calls_are_written(
    start: Callable[..., Target], root: None
) -> None:
    """Calls that the program makes during the writing are not measured."""
    target = start("methods/calls.rb")
    options = CallsOptions(select=selectors_of(["Tiny#call"], ()), ring_records=1 << 20)
    targets = Targets.from_pids([target.pid])
    with closing(targets), closing(Calls(targets, options)) as session:
        session.start()
        assert target.step("burst") == "done"
        calls._write_calls(session, Slow(target), Limits(SECONDS), Stop())
    assert session.seen == CALLS
