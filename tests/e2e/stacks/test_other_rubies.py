"""A smoke test of each other installed Ruby. `make test-all` runs the other tests."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import rubies
from commands import Tracer, run
from ruby_builds import TREES, Build, running

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("root")]


@pytest.mark.parametrize("name", [*rubies.NAMES, *TREES])
def test_stacks_and_calls(name: str, trace: Callable[..., Tracer]) -> None:
    if not (rubies.DIRECTORY / name).is_dir():
        pytest.skip(f"no Ruby {name}: `scripts/rubies.sh build`, or `unpack`")
    with running(Build(name), "methods/calls.rb", "late") as target:
        assert run("attach", target.pid)[2] == 0
        out, err, code = run("dump", target.pid, "--json")
        assert code == 0, err
        main, *_ = json.loads(out)["processes"][0]["threads"]
        assert main["frames"][-1]["name"] == "<main>"
        tracer = trace("calls", target.pid, "-m", "Tiny#", "--json")
        target.target.step("last")
        call, end = map(json.loads, tracer.finish()[0].splitlines())
    assert (call["method"], end["lost"]) == ("Tiny#last", 0)
