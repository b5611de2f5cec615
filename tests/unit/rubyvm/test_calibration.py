"""A Ruby that is run tells its layout: all of it, right, and once."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from processes import Target
from rbtrace_py.errors import NotPermitted, RbtraceError, UnknownRuby
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm import calibration
from rbtrace_py.rubyvm.attach import attach
from rbtrace_py.rubyvm.calibration.cache import from_json, to_json
from rbtrace_py.rubyvm.calibration.given import Given, View, parse
from rbtrace_py.rubyvm.calibration.objects import Strings
from rbtrace_py.rubyvm.detect import find_ruby
from rbtrace_py.rubyvm.layout import Layout, Origin, Traits
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from rbtrace_py.rubyvm.mining import refine
from rubies import as_user, command, each_ruby


def table_of(process: Process) -> Layout:
    with closing(find_ruby(process)) as ruby:
        version = ruby.version.text
        return refine(ruby, layout_from(table_for(version), version))


def learn(process: Process) -> Layout:
    with closing(find_ruby(process)) as ruby:
        return calibration.run(process, ruby, ruby.version)


@each_ruby
def test_every_offset_and_trait(ruby: Process) -> None:
    """As the table has them, which was made of compilers' words."""
    learnt, table = learn(ruby), table_of(ruby)
    assert asdict(learnt.offsets) == asdict(table.offsets)
    assert learnt.traits == table.traits
    assert set(learnt.origins.values()) == {Origin.CALIBRATED, Origin.MINED}
    mined = {n for n, origin in learnt.origins.items() if origin is Origin.MINED}
    assert mined == {"vm_objspace", "objspace_flags", "objspace_gc_bit"}


@each_ruby
def test_without_a_table_of_its_version(
    ruby: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the nearest one it only takes the traits that cannot be measured."""
    own = table_of(ruby)
    wrong: dict[str, Any] = {
        "qnil": 1,
        "singleton_bit": 30,
        "symbol_shift": 9,
        "has_ractors": not own.traits.has_ractors,
        "first_line_is_fixnum": not own.traits.first_line_is_fixnum,
        "native_id_is_tid": not own.traits.native_id_is_tid,
        "iseq_imemo": 1,
    }
    known = replace(own.traits, **wrong)
    monkeypatch.setattr(calibration, "_known_traits", lambda version: known)
    assert learn(ruby).traits == own.traits


@pytest.mark.parametrize("ruby", ["3.1"], indirect=True)
def test_it_is_learnt_once(
    ruby: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = attach(ruby, sources=(Origin.CALIBRATED,)).layout
    entries = list(tmp_path.glob("rbtrace-py/calibration/*.json"))
    assert len(entries) == 1

    def fail(*arguments: object) -> Layout:
        raise UnknownRuby("it was run again")

    monkeypatch.setattr(calibration, "run", fail)
    assert attach(ruby, sources=(Origin.CALIBRATED,)).layout == first
    with pytest.raises(UnknownRuby, match="run again"):
        attach(ruby, sources=(Origin.CALIBRATED,), use_cache=False)
    for nonsense in ("", "{}", "[1]", '{"version": 1, "traits": {}}', "\0"):
        entries[0].write_text(nonsense)
        with pytest.raises(UnknownRuby, match="run again"):
            attach(ruby, sources=(Origin.CALIBRATED,))
    kept = to_json(first)
    kept["offsets"]["ec_cfp"] = -8
    entries[0].write_text(json.dumps(kept))
    with pytest.raises(UnknownRuby, match="run again"):
        attach(ruby, sources=(Origin.CALIBRATED,))


@pytest.mark.parametrize("ruby", ["2.7", "3.4"], indirect=True)
def test_a_layout_is_kept_whole(ruby: Process) -> None:
    layout = table_of(ruby)
    assert from_json(json.loads(json.dumps(to_json(layout)))) == layout
    assert {field.name for field in fields(Traits)} == set(to_json(layout)["traits"])


def test_of_another_user(root: None) -> None:
    target = Target(*as_user(command("here")))
    try:
        with Process(target.pid) as process:
            layout = attach(process, sources=(Origin.CALIBRATED,)).layout
            assert asdict(layout.offsets) == asdict(table_of(process).offsets)
    finally:
        target.close()


class Fake:
    """A memory that has nothing."""

    def read(self, address: int, size: int) -> bytes:
        return bytes(size)

    def gather(self, ranges: Any) -> list[bytes]:
        return [bytes(size) for _, size in ranges]


@pytest.mark.parametrize(
    "said",
    [
        [],
        [b""],
        [b"ready zzz"],
        [b"ready 1000"],
        [b"iseq a"],
        [b"iseq \xff 1 2:3"],
        [b"thread 0 0"],
        [b"names a,b", b"ready 7f0000000000"],
    ],
)
def test_answers_that_make_no_sense(said: list[bytes]) -> None:
    with pytest.raises(UnknownRuby, match="did not tell its layout"):
        parse(said, Fake())


def test_a_memory_that_makes_no_sense() -> None:
    given = Given({"text_short": 0x10000, "text_long": 0x20000})
    with pytest.raises(UnknownRuby, match="strings"):
        Strings(View(Fake()), given)


class Endless:
    """A memory in which every word is a pointer to another."""

    def read(self, address: int, size: int) -> bytes:
        return (address + 0x10).to_bytes(8, "little") * (size // 8) + bytes(size % 8)

    def gather(self, ranges: Any) -> list[bytes]:
        return [self.read(*pair) for pair in ranges]


def follow_from(view: View, at: int, size: int, step: int) -> None:
    while view.read(at, size):
        at += step


@pytest.mark.parametrize(("size", "step"), [(8, 16), (1 << 20, 16), (8, 0)])
def test_a_memory_without_end(size: int, step: int) -> None:
    with pytest.raises(UnknownRuby, match="no end"):
        follow_from(View(Endless()), 0x10000, size, step)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise NotPermitted("it may not be run")

    monkeypatch.setattr(calibration, "run_as", refuse)


@pytest.mark.parametrize("ruby", ["3.1"], indirect=True)
def test_a_refusal_is_passed_on(ruby: Process, refused: None) -> None:
    with pytest.raises(UnknownRuby, match="may not be run"):
        attach(ruby, sources=(Origin.CALIBRATED,))
    with closing(find_ruby(ruby)) as found, pytest.raises(RbtraceError):
        calibration.run(ruby, found, found.version)
