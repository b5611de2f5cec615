"""Output of ``attach`` and ``detach``."""

from __future__ import annotations

import dataclasses

from rbtrace_py.model.attach import AttachResult, Cost, Detached
from rbtrace_py.report.json.inside import attached_document, detached_document
from rbtrace_py.report.style import PLAIN
from rbtrace_py.report.terminal.attach import attached_lines, detached_lines

COST = Cost(
    attempts=1, stopped_ns=1_120_000, longest_ns=1_120_000, answer_ns=61 * 10**6
)
FOUND = AttachResult(pid=4711, cost=COST, ruby="ruby 3.1.2p20", without_hook=None)


def test_one_attempt() -> None:
    assert list(attached_lines(FOUND, PLAIN)) == [
        "process 4711 now has the agent, and it answers",
        "  paused once, for 1.12 ms; first answer after 61.0 ms",
        "  ruby 3.1.2p20",
    ]


def test_several_attempts() -> None:
    cost = Cost(3, 5_500_000, 4_000_000, 2 * 10**9)
    found = dataclasses.replace(FOUND, cost=cost)
    assert list(attached_lines(found, PLAIN))[1] == (
        "  paused 3 times, for 5.50 ms, at most 4.00 ms at once;"
        " first answer after 2.00 s"
    )


def test_an_agent_that_was_there_without_a_hook() -> None:
    """Texts of the process do not steer the terminal."""
    found = AttachResult(4711, None, "ruby \x1b[2J", "no\nhook")
    assert list(attached_lines(found, PLAIN)) == [
        "process 4711 has the agent already",
        "  ruby \\e[2J",
        "  no method events: no\\nhook",
    ]
    document = attached_document(found)
    assert (document["was_there"], document["answer_ns"]) == (True, None)
    assert document["method_events"] is False


def test_detached() -> None:
    assert len(list(detached_lines(Detached(4711, None), PLAIN))) == 3
    lines = list(detached_lines(Detached(4711, 815), PLAIN))
    assert "  process 815 was tracing through it" in lines
    assert detached_document(Detached(4711, 815))["tracer"] == 815
