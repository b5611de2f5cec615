"""Methods of classes that Rails reloads while they are traced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rails import need_rails
from test_targeted import ENABLED, defined, evaluated

from commands import Tracer, answer, by_key
from processes import TARGETS, Target, times
from rubies import Running

Trace = Callable[..., Tracer]
RELOADS = times(200)


@pytest.fixture
def application(root: None, tmp_path: Path) -> Iterator[Target]:
    need_rails()
    target = Target("ruby", str(TARGETS / "methods/reloaded.rb"), str(tmp_path))
    yield target
    target.close()


def test_the_new_class_is_hooked_each_time(application: Target, trace: Trace) -> None:
    """And nothing loads it for that; what is garbage then is let go."""
    running = Running(application, application.pid)
    evaluated(application, "Thing.find.run")
    words = ["-m", "Thing#", "-m", "Thing.find"]
    tracer = trace("calls", application.pid, *words, "--json")
    for number in range(1, RELOADS + 1):
        evaluated(application, f"reload({number})")
        assert evaluated(application, "Object.autoload?(:Thing).nil?") == "false"
        defined(running, "Thing; nil", 2)
        assert evaluated(application, "Thing.find.run") == str(number)
        if number % 5 == 0:
            evaluated(application, "GC.compact; nil")
    evaluated(application, f"sleep 0.01 until {ENABLED}.size == 2")
    *calls, end = map(json.loads, tracer.finish()[0].splitlines())
    found = [call["method"] for call in calls]
    assert found == ["Thing.find", "Thing#run"] * RELOADS
    assert (end["lost"], evaluated(application, f"{ENABLED}.size")) == (0, "0")


def test_the_same_name_each_time(application: Target, trace: Trace) -> None:
    """Where all methods are hooked: its classes are one row, and nobody else's."""
    tracer = trace("count", application.pid, "method", "--by", "method", "--json")
    for number in range(1, RELOADS + 1):
        evaluated(application, f"reload({number}); Thing.find.run; nil")
        if number % 5 == 0:
            evaluated(application, "GC.compact; nil")
    found = by_key(answer(tracer))
    names = {name: count for name, count in found.items() if name.startswith("Thing")}
    assert names == {"Thing#run": RELOADS, "Thing.find": RELOADS}
