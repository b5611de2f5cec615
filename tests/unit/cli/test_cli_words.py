"""From words to values: times, targets, the command behind ``--``."""

from __future__ import annotations

from typing import Any

import click
import pytest

from rbtrace_py.cli.common.options import GroupingOptions
from rbtrace_py.cli.common.parameter_types import Milliseconds, Seconds
from rbtrace_py.cli.main import cli, split_command
from rbtrace_py.session.limits import Limits
from rbtrace_py.session.targets.targets import Targets, parse_pids


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10.0),
        ("0.5", 0.5),
        (".5", 0.5),
        ("3.", 3.0),
        ("500ms", 0.5),
        ("500 ms", 0.5),
        ("1s", 1.0),
        ("2m", 120.0),
        ("1.5min", 90.0),
        ("1h", 3600.0),
        ("1h30m", 5400.0),
        ("1m 0.5s", 60.5),
        ("20us", 20e-6),
        ("1.5µs", 1.5e-6),
        ("100ns", 100e-9),
        ("7d", 7 * 86_400.0),
        ("1d12h", 36 * 3600.0),
        (2.5, 2.5),
    ],
)
def test_a_time(text: Any, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10", 10.0),
        (".5", 0.5),
        ("10ms", 10.0),
        ("0.01s", 10.0),
        ("1m", 60_000.0),
        ("1us", 0.001),
    ],
)
def test_a_time_in_ms(text: str, milliseconds: float) -> None:
    found = Milliseconds().convert(text, None, None)
    assert found == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "10x",
        "ms",
        "-1",
        "1e3",
        "1:30",
        "1 2",
        "1h30",
        "0",
        "0ms",
        "inf",
        "nan",
    ],
)
def test_not_a_time(text: str) -> None:
    with pytest.raises(click.UsageError):
        Seconds().convert(text, None, None)


@pytest.mark.parametrize(
    ("words", "before", "command"),
    [
        ([], [], []),
        (["count", "1", "x"], ["count", "1", "x"], []),
        (["count", "x", "--", "ruby", "a.rb"], ["count", "x"], ["ruby", "a.rb"]),
        (["count", "--", "sh", "-c", "a -- b"], ["count"], ["sh", "-c", "a -- b"]),
        (["count", "--", "a", "--", "b"], ["count"], ["a", "--", "b"]),
        (["count", "x", "--"], ["count", "x"], []),
        (["--", "ruby"], [], ["ruby"]),
    ],
)
def test_split_command(words: list[str], before: list[str], command: list[str]) -> None:
    assert split_command(words) == (before, command)


def test_pids() -> None:
    assert parse_pids("12") == [12]
    assert parse_pids("12,34,12") == [12, 34]


def invoked(monkeypatch: pytest.MonkeyPatch, verb: str, *words: str) -> dict[str, Any]:
    """Return the arguments with which a command's function would be called."""
    seen: dict[str, Any] = {}

    class FakeTargets(Targets):
        @classmethod
        def from_pids(cls, pids: Any, follow: bool = False) -> Targets:
            seen.update(pids=pids, follow=follow)
            return Targets({}, follow)

        @classmethod
        def from_command(cls, words: Any, follow: bool = False) -> Targets:
            seen.update(command=words, follow=follow)
            return Targets({}, follow)

    def answer(session: Any, limits: Any, rendering: Any) -> int:
        seen.update(session=session, limits=limits, rendering=rendering)
        return 0

    monkeypatch.setattr("rbtrace_py.cli.common.target_options.Targets", FakeTargets)
    cli.get_command(None, verb)  # type: ignore[arg-type]
    monkeypatch.setattr(f"rbtrace_py.cli.{verb}.answer", answer)
    before, command = split_command([verb, *words])
    cli.main(before, "rbtrace-py", standalone_mode=False, obj={"command": command})
    return seen


def test_a_target_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = invoked(monkeypatch, "count", "12,34", "a", "b:*", "--subprocesses")
    assert seen["pids"] == [12, 34]
    assert seen["follow"]
    assert seen["session"].words == ("a", "b:*")


def test_options_may_stand_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = invoked(monkeypatch, "count", "--by", "id", "12", "-d", "2m", "a", "-n", "3")
    assert seen["session"].words == ("a",)
    assert seen["session"].options.by == "id"
    assert seen["limits"] == Limits(120.0, 3, None)


def test_a_command_is_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("checkout", "--by", "sku", "--", "ruby", "shop.rb", "--by", "--json")
    seen = invoked(monkeypatch, "latency", *words)
    assert seen["command"] == ["ruby", "shop.rb", "--by", "--json"]
    assert seen["session"].words == ("checkout",)
    assert not seen["rendering"].as_json


def test_the_last_word_of_values_is_the_operand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = invoked(monkeypatch, "values", "12", "a", "b", "price", "--json")
    assert seen["session"].words == ("a", "b")
    assert seen["session"].argument == "price"
    assert seen["rendering"].as_json


def test_hlog_and_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = invoked(monkeypatch, "latency", "1", "a", "--hlog", "f", "-i", "500ms")
    assert seen["rendering"].hlog == "f"
    assert seen["limits"] == Limits(None, None, 0.5)


def test_values_of_the_shared_options() -> None:
    options = GroupingOptions(
        by="id", max_keys=7, filter_="id > 1", wait=True, yes=False,
        duration=None, count=None, interval=None,
    )  # fmt: skip
    found = options.probe_options
    assert (found.by, found.filter, found.max_keys, found.wait) == (
        "id",
        "id > 1",
        7,
        True,
    )
    assert options.limits == Limits(None, None, None)


def test_ps_takes_the_only_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rbtrace_py.session.targets.choosing.find_by_cmdline",
        lambda regex: [type("Candidate", (), {"pid": 77, "cmdline": "ruby"})],
    )
    seen = invoked(monkeypatch, "count", "--ps", "ruby", "a")
    assert seen["pids"] == [77]
    assert seen["session"].words == ("a",)
