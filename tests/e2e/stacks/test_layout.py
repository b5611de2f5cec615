"""``layout``: the Ruby version, and the source of each offset."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import run
from processes import Target

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
    assert "confirmed by the binary's code" in out
    assert "rb_execution_context_t.cfp" in out
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_each_source_says_the_same(target: Target, tmp_path: Path) -> None:
    table = document(target, "--source", "table", cache=tmp_path)
    found = document(target, cache=tmp_path)
    assert table["schema"] == "rbtrace-py/layout"
    assert table["pid"] == target.pid
    for key in ("ruby_version", "file", "build_id", "base", "vm", "symbols", "traits"):
        assert table[key] == found[key]
    offsets = [
        {one["name"]: one["offset"] for one in source["offsets"]}
        for source in (table, found)
    ]
    assert offsets[0] == offsets[1]
    assert {one["origin"] for one in table["offsets"]} <= {"table", "mined"}
    confirmed = {one["name"] for one in table["offsets"] if one["confirmed"]}
    assert {"fiber_status", "vm_objspace"} <= confirmed


def test_a_layout_is_saved_and_used(target: Target, tmp_path: Path) -> None:
    """`layout --save` saves it. Commands that read stacks load it with `--layout`."""
    file = tmp_path / "ruby.layout"
    out, err, code = run("layout", target.pid, "--save", file, "--json")
    assert (code, err) == (0, "")
    plain = json.loads(out)
    used = document(target, "--layout", str(file), cache=tmp_path)
    assert {one["origin"] for one in used["offsets"]} == {"file"}
    for one, other in zip(used["offsets"], plain["offsets"], strict=True):
        assert one["offset"] == other["offset"]
    stacks = [
        json.loads(run("dump", target.pid, "--json", *words)[0])["processes"][0][
            "threads"
        ]
        for words in ((), ("--layout", file))
    ]
    assert stacks[0] == stacks[1]
    for words in ((), ("--layout", file)):
        options = ("--mode", "wall", "--count", "3", *words)
        out, err, code = run("stacks", target.pid, *options)
        assert code == 0, err
        (line,) = out.splitlines()
        stack, _, weight = line.rpartition(" ")
        assert stack == "[sleeping];<main> -e;IO#gets -e"
        assert int(weight) > 0
        assert " 3 samples in " in err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "null",
        '{"schema": "rbtrace-py/saved-layout"}',
        '{"schema": "rbtrace-py/saved-layout", "version": 1, "ruby_version": "3.1.2",'
        ' "build_id": "", "offsets": {"th_vm": -8}}',
        '{"schema": "rbtrace-py/saved-layout", "version": 1, "ruby_version": "3.1.2",'
        ' "build_id": "", "offsets": {"th_vm": 1e300}}',
        '{"schema": "rbtrace-py/saved-layout", "version": 1, "ruby_version": "\u001b",'
        ' "build_id": "", "offsets": {}}',
    ],
)
def test_a_malformed_saved_layout(target: Target, tmp_path: Path, text: str) -> None:
    file = tmp_path / "ruby.layout"
    file.write_text(text)
    _, err, code = run("dump", target.pid, "--layout", file)
    assert code == 2
    assert "is not a saved layout" in " ".join(err.split())


def test_words_that_make_no_sense(target: Target, tmp_path: Path) -> None:
    _, err, code = run("layout", target.pid, "--save", tmp_path / "none" / "x")
    assert (code, "none/x" in err) == (1, True)
    _, err, code = run("layout", target.pid, "--ruby-version", "banana")
    assert code == 2
    assert "not a Ruby version" in err
    _, err, code = run("layout", target.pid, "word")
    assert code == 2
    _, err, code = run("layout", os.getpid())
    assert code == 4
    assert "does not run Ruby" in err
