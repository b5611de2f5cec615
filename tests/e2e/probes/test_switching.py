"""Probes that the program disables while they are traced."""

from __future__ import annotations

import signal

from commands import answer
from processes import read_line

WORDS = ["switch:event", "switch:work", "--json"]


def counts(document):
    return {group["series"]: group["count"] for group in document["groups"]}


def toggled(target):
    target.process.send_signal(signal.SIGPROF)
    return read_line(target.process.stdout)


def test_a_signal_switches_them(start, trace):
    target = start("probes/switched.rb", env={"MODE": "signal"})
    tracer = trace("count", target.pid, *WORDS)
    steps = [target.step()]
    for state in ("on", "off", "on"):
        assert toggled(target) == state
        steps.append(target.step())
    assert steps == ["0", "10", "0", "10"]
    assert counts(answer(tracer)) == {"switch:event": 20, "switch:work__end": 10}


def test_the_environment_switches_them_off(start, trace):
    target = start("probes/switched.rb", env={"TRACEPOINT": "off", "MODE": "signal"})
    tracer = trace("count", target.pid, *WORDS)
    assert target.step() == "0"
    assert toggled(target) == "off"
    assert target.step() == "0"
    document = answer(tracer)
    assert not any(counts(document).values())
    assert document["count"] == 0
