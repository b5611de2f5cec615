"""The gem's testing helper captures the same events as a tracer."""

from __future__ import annotations

import json


def test_capture_and_trace_are_equal(start, trace):
    target = start("probes/captured.rb")
    tracer = trace("trace", target.pid, "shop:*", "closed:*", "--json")
    captured = json.loads(target.step())
    out, err, code = tracer.finish()
    assert code == 0, err
    traced = [json.loads(line) for line in out.splitlines()]
    traced = [event for event in traced if "probe" in event]
    for event in traced:
        event["arguments"].pop("duration_ns", None)
    assert len(captured) == 5 + 6 * 2 + 2
    assert captured == [
        {"probe": event["probe"], "arguments": event["arguments"]} for event in traced
    ]
