"""Words that select probes, and the errors for words that do not."""

from __future__ import annotations

import pytest

from rbtrace_py.model.probes import Binary, Probe
from rbtrace_py.session.probes.select import pick, unknown_probe


def probe(name: str) -> Probe:
    provider, _, bare = name.partition(":")
    return Probe(provider, bare, Binary(0, 0, ""), (), ())


PROBES = [
    probe(name)
    for name in ("rbtrace:object", "rbtrace:raise", "ruby:raise", "ruby:method__entry")
]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("object", []),
        ("raise", ["ruby:raise"]),
        ("rbtrace:object", ["rbtrace:object"]),
        ("rais*", ["rbtrace:raise", "ruby:raise"]),
    ],
)
def test_a_bare_name_is_not_the_agents_own(word: str, found: list[str]) -> None:
    assert [each.full_name for each in pick(word, PROBES)] == found


@pytest.mark.parametrize(
    ("command", "word", "hint"),
    [
        ("latency", "methods", "Did you mean method, ruby:method__entry?"),
        ("count", "metod", "Did you mean method?"),
        ("count", "objects", "Did you mean object?"),
        ("count", "gcs", "Did you mean gc?"),
        ("trace", "rise", "Did you mean raise, ruby:raise?"),
        ("trace", "metods", "Show every call of a method with `rbtrace-py calls PID`"),
        (
            "latency",
            "Shop::Till#pay",
            "Select methods with -m: `rbtrace-py latency PID method -m"
            " 'Shop::Till#pay'`",
        ),
        (
            "trace",
            "Shop.open",
            "Show the calls of a method with `rbtrace-py calls PID -m Shop.open`",
        ),
        ("values", "gc", "Time collections with `rbtrace-py latency PID gc`"),
        ("values", "method_entry", "Did you mean ruby:method__entry?"),
        ("count", "frais", "Did you mean raise, ruby:raise?"),
        ("count", "frist", "Did you mean ruby:raise?"),
        ("count", "ruby*", "Did you mean ruby:*?"),
        ("count", "shop", "List all probes with `rbtrace-py probes PID`"),
    ],
)
def test_similar_names_are_suggested(command: str, word: str, hint: str) -> None:
    assert unknown_probe(word, PROBES, command).hint == hint


def test_no_suggestion_without_probes() -> None:
    hint = "The process has no USDT probes: see `rbtrace-py doctor PID`"
    assert unknown_probe("shop", PROBES[:2]).hint == hint
