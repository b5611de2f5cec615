"""Every command says what it does, in 80 columns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import pytest

from rbtrace_py import __version__
from rbtrace_py.cli.main import COMMANDS

EVERY = [(), *((name,) for name in COMMANDS)]
EVENT_COMMANDS = ["count", "latency", "trace", "values"]
SAMPLERS = ["stacks", "record"]
SAMPLING = [*SAMPLERS, "top"]
INSIDE = ["eval", "backtraces", "memory", "fork", "calls"]
ATTACHING = ["attach", "detach"]
DUMPS = ["heapdump", "shapesdump"]
TARGETED = [
    "probes",
    *EVENT_COMMANDS,
    *SAMPLING,
    "dump",
    "layout",
    *INSIDE,
    "console",
    *DUMPS,
    *ATTACHING,
]
NO_OUTPUT = [*ATTACHING, "top", "eval", "console", "fork"]
SHARED = {
    "--pid": [*TARGETED, "doctor", "report"],
    "--filter": EVENT_COMMANDS,
    "--wait": [*EVENT_COMMANDS, "calls"],
    "--duration": [*EVENT_COMMANDS, *SAMPLING, "calls"],
    "--count": [*EVENT_COMMANDS, *SAMPLING, "calls"],
    "--by": ["count", "latency", "values"],
    "--max-keys": ["count", "latency", "values"],
    "--interval": ["count", "latency", "values", "stacks", "top"],
    "--rate": [*SAMPLING, "latency"],
    "--mode": SAMPLING,
    "--format": [*SAMPLERS, "report"],
    "--ps": [*TARGETED, "doctor"],
    "--subprocesses": TARGETED,
    "--json": [
        "probes",
        *EVENT_COMMANDS,
        "dump",
        "layout",
        "doctor",
        *INSIDE,
        *ATTACHING,
    ],
    "--attach": [
        *("eval", "console", "backtraces", "memory", "fork", *DUMPS),
        *("count", "latency", "trace", "stacks", "calls"),
    ],
    "--timeout": ["eval", "calls", *DUMPS, *ATTACHING],
    "--output": [
        *(name for name in TARGETED if name not in NO_OUTPUT),
        "doctor",
        "report",
    ],
}


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize("words", EVERY, ids=lambda words: " ".join(words) or "top")
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_fits(words: tuple[str, ...], option: str, say: Callable) -> None:
    said = say(*words, option)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Usage: rbtrace-py")
    assert "Examples:" in said.out
    assert [line for line in said.out.splitlines() if columns(line) > 80] == []


def test_the_overview_names_every_command(say: Callable) -> None:
    groups = say("--help").out.partition("Stacks:\n")[2].splitlines()
    named = [line.split()[0] for line in groups if line.startswith("  ")]
    assert named == list(COMMANDS)
    assert len(set(named)) == len(named)


def test_without_a_command_there_is_the_overview(say: Callable) -> None:
    said = say()
    assert (said.out + said.err).strip() == say("--help").out.strip()


def test_version(say: Callable) -> None:
    said = say("--version")
    assert (said.code, said.out) == (0, f"rbtrace-py, version {__version__}\n")


def options_of(say: Callable, name: str) -> str:
    """Return the options listed below the help's text, which may mention other
    commands' options."""
    return say(name, "--help").out.partition("Options:\n")[2]


@pytest.mark.parametrize("option", sorted(SHARED))
def test_an_option_is_where_it_means_something(option: str, say: Callable) -> None:
    whole = re.compile(rf"{option}(?![\w-])")
    having = [name for name in COMMANDS if whole.search(options_of(say, name))]
    assert sorted(having) == sorted(SHARED[option])


def test_a_shared_option_is_explained_in_the_same_words(say: Callable) -> None:
    """An option is declared once, so its help is the same in all commands."""
    from rbtrace_py.cli.main import cli

    helps: dict[str, set[str | None]] = {}
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        for parameter in command.params:
            if parameter.name in ("words", "pid", "shell", "lines", "format_"):
                continue
            helps.setdefault(str(parameter.name), set()).add(
                getattr(parameter, "help", None)
            )
    assert {name: texts for name, texts in helps.items() if len(texts) > 1} == {}
