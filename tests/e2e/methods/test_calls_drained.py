"""``calls`` of a target that has ended: what is left of it, and who has seen enough."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from commands import Tracer
from processes import TIMEOUT, Target

CALLS = 200_000
READ = 150_000
AHEAD = 10_000
"""More lines than a pipe and the buffers before it hold."""


def test_one_signal_is_enough(
    start: Callable[..., Target], trace: Callable[..., Tracer]
) -> None:
    """It waits for its reader, and is told to end after its target has."""
    target = start("methods/calls.rb")
    tracer = trace("calls", target.pid, "-m", "Tiny#call", "--buffer", 1 << 20)
    assert target.step("burst") == "done"
    target.tell("exit")
    assert target.process.wait(TIMEOUT) == 0
    output = tracer.process.stdout
    assert output is not None
    for _ in range(READ):
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
