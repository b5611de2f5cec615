"""``layout``: which Ruby, and where each offset came from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Target, run

PROGRAM = "$stdout.sync = true; puts :ready; $stdin.gets"


@pytest.fixture
def target(root: None) -> Iterator[Target]:
    started = Target("ruby", "-e", PROGRAM)
    yield started
    started.close()


def document(target: Target, *words: str, cache: Path) -> Any:
    out, err, code = run(
        "layout", target.pid, "--json", *words, env={"XDG_CACHE_HOME": str(cache)}
    )
    assert (code, err) == (0, "")
    return json.loads(out)


def test_for_people(target: Target, tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path)}
    out, err, code = run("layout", target.pid, env=env)
    assert (code, err) == (0, "")
    assert out.startswith("Ruby ")
    assert "the binary's code confirms" in out
    assert "rb_execution_context_t.cfp" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_each_source_says_the_same(target: Target, tmp_path: Path) -> None:
    table = document(target, "--source", "table", cache=tmp_path)
    learnt = document(target, "--calibrate", cache=tmp_path)
    again = document(target, "--source", "calibration", cache=tmp_path)
    assert table["schema"] == "rbtrace-py/layout"
    assert table["pid"] == target.pid
    for key in ("ruby_version", "file", "build_id", "base", "vm", "symbols", "traits"):
        assert table[key] == learnt[key] == again[key]
    offsets = [
        {one["name"]: one["offset"] for one in found["offsets"]}
        for found in (table, learnt, again)
    ]
    assert offsets[0] == offsets[1] == offsets[2]
    assert {one["origin"] for one in learnt["offsets"]} == {"calibrated", "mined"}
    assert {one["origin"] for one in table["offsets"]} <= {"table", "mined"}
    confirmed = {one["name"] for one in table["offsets"] if one["confirmed"]}
    assert {"iseq_body", "body_label", "me_def"} <= confirmed


def test_words_that_make_no_sense(target: Target) -> None:
    _, err, code = run("layout", target.pid, "--calibrate", "--source", "table")
    assert code == 2
    assert "do not go together" in err
    _, err, code = run("layout", target.pid, "--ruby-version", "banana")
    assert code == 2
    assert "no version of Ruby" in err
    _, err, code = run("layout", target.pid, "word")
    assert code == 2
    _, err, code = run("layout", os.getpid())
    assert code == 4
    assert "runs no Ruby" in err
