"""Methods of classes that are reloaded while traced, on each Ruby."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rails import need_rails
from test_targeted import ENABLED, defined, evaluated

import rubies
from commands import Tracer, answer, by_key
from processes import times
from rubies import Running
from ruby_builds import MATRIX

Trace = Callable[..., Tracer]
RELOADS = times(200)
RAILS = "rails"


@pytest.fixture(params=[RAILS, *MATRIX])
def application(
    request: pytest.FixtureRequest, root: None, tmp_path: Path
) -> Iterator[Running]:
    """Rails needs this machine's Ruby. With the others, the program imitates its
    reloader."""
    name, words = request.param, [str(tmp_path)]
    if name == RAILS:
        need_rails()
        name = rubies.HERE
        words.append(RAILS)
    with rubies.running(name, "methods/reloaded.rb", *words) as running:
        yield running


def test_the_new_class_is_hooked_each_time(application: Running, trace: Trace) -> None:
    """The tracer does not load the class for this, and releases the old class as
    garbage."""
    target = application.target
    evaluated(target, "Thing.find.run")
    words = ["-m", "Thing#", "-m", "Thing.find"]
    tracer = trace("calls", application.pid, *words, "--json")
    for number in range(1, RELOADS + 1):
        evaluated(target, f"reload({number})")
        assert evaluated(target, "Object.autoload?(:Thing).nil?") == "false"
        defined(application, "Thing; nil", 2)
        assert evaluated(target, "Thing.find.run") == str(number)
        if number % 5 == 0:
            evaluated(target, "GC.compact; nil")
    evaluated(target, f"sleep 0.01 until {ENABLED}.size == 2")
    *calls, end = map(json.loads, tracer.finish()[0].splitlines())
    found = [call["method"] for call in calls]
    assert found == ["Thing.find", "Thing#run"] * RELOADS
    assert (end["lost"], evaluated(target, f"{ENABLED}.size")) == (0, "0")


def test_the_same_name_each_time(application: Running, trace: Trace) -> None:
    """With all methods hooked, the versions of a class share one row with no other
    class."""
    target = application.target
    words = ["method", "--by", "method", "--json", "--yes"]
    tracer = trace("count", application.pid, *words)
    for number in range(1, RELOADS + 1):
        evaluated(target, f"reload({number}); Thing.find.run; nil")
        if number % 5 == 0:
            evaluated(target, "GC.compact; nil")
    found = by_key(answer(tracer))
    names = {name: count for name, count in found.items() if name.startswith("Thing")}
    assert names == {"Thing#run": RELOADS, "Thing.find": RELOADS}
