"""Translation of rbtrace's command line to our commands.

Facts about rbtrace (0.4.14 and 0.5.4) and Optimist, its option parser: an option takes
all words up to the next option. A short name that was not chosen is the first free
letter of the long name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from rbtrace_py.errors import UsageError


class _Takes(Enum):
    NOTHING = auto()
    A_WORD = auto()
    PERHAPS_A_WORD = auto()
    WORDS = auto()


_OPTIONS = {
    "exec": ("x", _Takes.WORDS),
    "pid": ("p", _Takes.WORDS),
    "ps": ("", _Takes.A_WORD),
    "firehose": ("f", _Takes.NOTHING),
    "slow": ("s", _Takes.PERHAPS_A_WORD),
    "slowcpu": ("l", _Takes.PERHAPS_A_WORD),
    "slow-methods": ("w", _Takes.WORDS),
    "methods": ("m", _Takes.WORDS),
    "gc": ("g", _Takes.NOTHING),
    "start-time": ("t", _Takes.NOTHING),
    "no-duration": ("n", _Takes.NOTHING),
    "output": ("o", _Takes.A_WORD),
    "append": ("a", _Takes.NOTHING),
    "prefix": ("r", _Takes.PERHAPS_A_WORD),
    "config": ("c", _Takes.WORDS),
    "devmode": ("d", _Takes.NOTHING),
    "fork": ("k", _Takes.NOTHING),
    "eval": ("e", _Takes.A_WORD),
    "interactive": ("i", _Takes.PERHAPS_A_WORD),
    "backtraces": ("b", _Takes.PERHAPS_A_WORD),
    "backtrace": ("", _Takes.A_WORD),
    "wait": ("", _Takes.PERHAPS_A_WORD),
    "timeout": ("u", _Takes.PERHAPS_A_WORD),
    "memory": ("y", _Takes.NOTHING),
    "heapdump": ("h", _Takes.PERHAPS_A_WORD),
    "shapesdump": ("", _Takes.PERHAPS_A_WORD),
    "version": ("v", _Takes.NOTHING),
    # Our additions: rbtrace does these without an option.
    "c-calls": ("", _Takes.NOTHING),
    "attach": ("", _Takes.NOTHING),
    "yes": ("", _Takes.NOTHING),
}
_BY_LETTER = {letter: name for name, (letter, _) in _OPTIONS.items() if letter}
_TRACERS = ("firehose", "methods", "slow", "slowcpu", "config", "gc")
_IS_OPTION = re.compile(r"-(-|[^\d.])")
_NUMERIC = "=0123456789"
_EXEC = "--exec"

Given = Mapping[str, Sequence[str]]
"""Given options by their long names, with their words."""


@dataclass(frozen=True, slots=True)
class Translated:
    """One of our commands; ``notes`` name the differences from rbtrace."""

    words: list[str]
    command: list[str]
    notes: list[str]


def translate(words: Sequence[str]) -> Translated:
    """Translate rbtrace's ``words`` to ours.

    Raises:
        UsageError: rbtrace would reject the words, or nothing is to be traced.
    """
    at = words.index(_EXEC) if _EXEC in words else len(words)
    given = _read(words[:at])
    command = [*given.get("exec", ()), *words[at + 1 :]]
    is_command = "exec" in given or at < len(words)
    notes = _notes(given)
    found = next((one for name, one in _QUESTIONS.items() if name in given), None)
    if found is None and is_command and not any(name in given for name in _TRACERS):
        given["firehose"] = []
        notes.append("no method selected: showing all calls, as with -f")
    if found is None:
        verb, rest = "calls", list(_calls(given, notes))
    else:
        verb, rest = found(given, notes)
    if verb == "calls" and "c-calls" not in given:
        notes.append("methods written in C are left out; to include them, type:")
        notes.append(shlex.join(["rbtrace-py", "rbtrace", "--c-calls", *words]))
    target = _target(given, verb, is_command)
    rest += [f"--{name}" for name in ("attach", "yes") if name in given]
    return Translated([verb, *target, *rest], command, notes)


def _notes(given: Given) -> list[str]:
    is_waited = "wait" in given
    return ["--wait is not needed: a command is always waited for"] if is_waited else []


def _read(words: Sequence[str]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    left = list(words)
    while left:
        names, value = _names(left.pop(0))
        for name in names[:-1]:
            given[name] = _checked(name, [])
        taken = [] if value is None else [value]
        while left and value is None and not _IS_OPTION.match(left[0]):
            taken.append(left.pop(0))
        name = names[-1]
        given[name] = [*given.get(name, []), *_checked(name, taken)]
    return given


def _names(word: str) -> tuple[list[str], str | None]:
    """Return the options that a word names, and the value after its =."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = name.replace("_", "-")
        if name in _OPTIONS:
            return [name], value if equals else None
    elif _IS_OPTION.match(word):
        letters, found = _letters(word[1:])
        if all(letter in _BY_LETTER for letter in letters):
            return [_BY_LETTER[letter] for letter in letters], found
    raise UsageError(f"rbtrace has no option {word}", "See rbtrace-py rbtrace --help")


def _letters(text: str) -> tuple[str, str | None]:
    """Split short options in one word from the value of the last one, if any.

    Examples: ``ftn``, ``s100``, ``tofile``.
    """
    for at, letter in enumerate(text[:-1], 1):
        takes = _OPTIONS[_BY_LETTER[letter]][1] if letter in _BY_LETTER else None
        is_number = takes is _Takes.PERHAPS_A_WORD and text[at] in _NUMERIC
        if takes in (_Takes.A_WORD, _Takes.WORDS) or is_number:
            return text[:at], text[at:].removeprefix("=")
    return text, None


def _checked(name: str, taken: list[str]) -> list[str]:
    takes = _OPTIONS[name][1]
    if not taken and takes in (_Takes.A_WORD, _Takes.WORDS):
        raise UsageError(f"--{name} needs an argument")
    most = {_Takes.NOTHING: 0, _Takes.WORDS: len(taken)}.get(takes, 1)
    if len(taken) > most:
        raise UsageError(f"too many arguments: {taken[most]!r}")
    return taken


def _target(given: Given, verb: str, is_command: bool) -> list[str]:
    if is_command:
        if "pid" in given or "ps" in given:
            raise UsageError("--exec replaces --pid and --ps")
        if verb != "calls":
            raise UsageError(f"{verb} works on running processes, not with --exec")
        return []
    if "pid" in given:
        pids = ",".join(given["pid"])
        if not re.fullmatch(r"\d+(,\d+)*", pids):
            raise UsageError(f"{pids} is not a pid")
        return [pids]
    if "ps" in given:
        return ["--ps", given["ps"][0]]
    raise UsageError("missing target: -p PID, --ps REGEX or --exec COMMAND")


def _calls(given: Given, notes: list[str]) -> Iterator[str]:
    """Yield the options of ``calls``; raises UsageError if nothing is to be traced."""
    if not any(name in given for name in _TRACERS):
        raise UsageError(
            "no action given",
            "Give -f, -m METHOD, -s MS or -e CODE: see rbtrace-py rbtrace --help",
        )
    if "firehose" not in given:
        yield from _selected(given, notes)
    if "devmode" in given:
        notes.append("--devmode is not needed: reloaded classes are recognized")
    if "c-calls" in given:
        yield "--c-calls"
    for name in ("gc", "start-time", "no-duration", "append"):
        if name in given:
            yield f"--{name}"
    for name in ("output", "prefix", "timeout"):
        yield from (f"--{name}={word}" for word in given.get(name, ())[:1])
    if "no-duration" not in given:
        yield "--rbtrace-times"


def _selected(given: Given, notes: list[str]) -> Iterator[str]:
    slow = next((name for name in ("slowcpu", "slow") if name in given), None)
    names = {"methods": "-m", "config": "-c"}
    if slow is not None:
        yield f"--{slow}={(*given[slow], '250')[0]}"
        names["slow-methods"] = "--slow-methods"
        if "methods" in given or "config" in given:
            notes.append("with --slow, methods are shown only when they are slow")
    for name, ours in names.items():
        for word in given.get(name, ()):
            yield from (ours, word)
    if slow is None and not ("methods" in given or "config" in given):
        # Select only collections. A method of that name would be included, too.
        yield from ("-m", "garbage_collect")


def _fork(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    return "fork", []


def _backtrace(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    count = given["backtrace"][0]
    if not count.isascii() or not count.isdigit():
        raise UsageError(f"--backtrace {count}: not a number of lines")
    code = f"puts Thread.main.backtrace.first({count})"
    return "eval", [code, "--echo", *_time(given)]


def _backtraces(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    if given["backtraces"] not in ([], ["-1"], ["0"]):
        notes.append("showing all lines of each thread")
    return "backtraces", []


def _memory(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    return "memory", []


def _heapdump(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    return "heapdump", list(given["heapdump"])


def _shapesdump(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    return "shapesdump", list(given["shapesdump"])


def _eval(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    code = given["eval"][0]
    # A leading - would make it an option.
    code = f" {code}" if code.startswith("-") else code
    return "eval", [code, "--echo", *_time(given)]


def _console(given: Given, notes: list[str]) -> tuple[str, list[str]]:
    if given["interactive"] not in ([], ["irb"]):
        notes.append(
            f"ignoring {given['interactive'][0]}: the console is rbtrace-py's own"
        )
    return "console", []


def _time(given: Given) -> list[str]:
    return [f"--timeout={word}" for word in given.get("timeout", ())[:1]]


_QUESTIONS = {
    "fork": _fork,
    "backtrace": _backtrace,
    "backtraces": _backtraces,
    "memory": _memory,
    "heapdump": _heapdump,
    "shapesdump": _shapesdump,
    "eval": _eval,
    "interactive": _console,
}
"""Actions in rbtrace's order. Only the first given action runs."""
