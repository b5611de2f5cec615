"""Probes that the program fires without declaring them: their types are known later."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from commands import Tracer, run
from processes import Target

Start = Callable[..., Target]
Trace = Callable[..., Tracer]


def types(target: Target) -> dict[str, str]:
    out, err, code = run("probes", target.pid, "login", "--json")
    assert code == 0, err
    (probe,) = json.loads(out)["probes"]
    return {argument["name"]: argument["type"] for argument in probe["arguments"]}


def traced(trace: Trace, target: Target, *lines: str) -> list[dict[str, Any]]:
    tracer = trace("trace", target.pid, "login", "--json", "-n", len(lines))
    for line in lines:
        assert target.step(line) == "[0, 0]"
    out, err, code = tracer.result()
    assert code == 0, err
    return [json.loads(line)["arguments"] for line in out.splitlines()[:-1]]


def test_a_type_is_known_with_its_first_value(
    root: None, start: Start, trace: Trace
) -> None:
    target = start("probes/undeclared.rb")
    assert types(target) == {"arg0": "nil", "plan": "nil"}
    nothing = {"arg0": None, "plan": None}
    assert traced(trace, target, "nil, plan: nil") == [nothing]
    # A tracer that attached before the first value still shows numbers.
    assert traced(trace, target, "-7, plan: nil") == [{"arg0": -7, "plan": None}]
    assert types(target) == {"arg0": "integer", "plan": "nil"}
    free = 'plan: Struct.new(:to_s).new("free")'
    target.step(f"-7, {free}")
    assert types(target) == {"arg0": "integer", "plan": "string"}
    assert traced(trace, target, f"3, {free}", "nil, plan: nil") == [
        {"arg0": 3, "plan": "free"},
        nothing,
    ]
