"""The kernel accepts the largest filters that the language allows."""

from __future__ import annotations

import json
import shutil

import pytest

from rbtrace_py.session.probes.filters.parser import (
    MAX_COMPARISONS,
    MAX_DEPTH,
    MAX_TEXT,
)

pytestmark = pytest.mark.skipif(not shutil.which("ruby"), reason="no ruby")


def text(number: int, size: int = 40) -> str:
    return f"{number:0{size}}"


def deepest() -> str:
    tree = "kind == 'plain'"
    for number in range(MAX_DEPTH - 2):
        tree = f"({tree} and kind != 'a{number}' and not kind ^= 'b{number}')"
    return f"{tree} or kind == 'c'"


# Each, but the deepest, has as many comparisons as there may be.
numbers = range(MAX_COMPARISONS)
LARGEST = {
    "equal": " or ".join(
        [f"kind == '{text(n)}'" for n in numbers[1:]] + ["kind == 'plain'"]
    ),
    "prefixes": " or ".join(
        [f"kind ^= '{text(n)}'" for n in numbers[1:]] + ["kind ^= 'pla'"]
    ),
    "and of or": " and ".join(
        f"(kind == 'plain' or kind ^= '{text(n)}')" for n in numbers[::2]
    ),
    "or of and": " or ".join(
        f"(kind == 'plain' and not kind ^= '{text(n)}')" for n in numbers[::2]
    ),
    "deepest": deepest(),
}


@pytest.mark.root
@pytest.mark.parametrize("command", ["count", "trace"])
@pytest.mark.parametrize("shape", LARGEST)
def test_the_largest_filters_load(shape, command, start, trace):
    assert len(LARGEST[shape]) <= MAX_TEXT
    target = start("probes/workload.rb")
    words = (command, target.pid, "item", "--filter", LARGEST[shape])
    tracer = trace(*words, *(["--json"] if command == "count" else []))
    target.step()
    out, err, code = tracer.finish()
    assert code == 0, err
    if command == "count":
        assert [group["count"] for group in json.loads(out)["groups"]] == [7]
    else:
        assert out.count("plain") == 7
