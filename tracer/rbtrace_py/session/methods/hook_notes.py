"""Notes on how a process's methods are hooked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from rbtrace_py.agent.arming import Armed, Selector

_NAME = 512
"""Maximum number of characters of a name in a note."""
_MOST_NAMES = 3


def hook_notes(pid: int, armed: Armed, c_calls: bool) -> list[str]:
    """Return lines that say which methods are hooked, which are not, and why.

    Args:
        pid: Number of the process.
        armed: Its hook.
        c_calls: True if methods written in C are hooked, too.
    """
    return [f"process {pid}: {text}" for text in _notes(armed, c_calls)]


def _notes(armed: Armed, c_calls: bool) -> Iterator[str]:
    if armed.why_all:
        yield f"all methods are hooked, not the selected alone: {armed.why_all}"
    if armed.targets or (c_calls and armed.targets is not None):
        yield _hooked(armed.targets, c_calls)
    if armed.without_code and not c_calls:
        yield (
            f"{_some(_words(armed.without_code))}: the matching methods have no Ruby"
            " code (they are written in C, or made by attr_reader and the like);"
            " --c-calls shows them"
        )
    if armed.unmatched:
        near = _near(armed)
        meant = f" (did you mean {', '.join(near)}?)" if near else ""
        words = _some(_words(armed.unmatched))
        yield f"no method matches {words} yet{meant}; new ones are looked for"
    if armed.left_out:
        yield (
            "before Ruby 3.2, methods made by define_method cannot be hooked one by"
            f" one, and are left out: {_some(sorted(armed.left_out))}"
        )


def _hooked(targets: int, c_calls: bool) -> str:
    methods = "1 method" if targets == 1 else f"{targets} methods"
    if not c_calls:
        return f"{methods} hooked and no other"
    if targets:
        return f"{methods} hooked, and all that are written in C"
    return "all methods written in C hooked and no other"


def _words(selectors: Iterable[Selector]) -> list[str]:
    return [one.word for one in selectors]


def _some(names: Sequence[str]) -> str:
    """Return the first names and the number of further names."""
    more = len(names) - _MOST_NAMES
    text = ", ".join(names[:_MOST_NAMES])
    return f"{text} and {more:,} more" if more > 0 else text


def c_calls_hint(natives: Iterable[bool | None]) -> str:
    """Return the hint to use --c-calls, or an empty string if it cannot help.

    Args:
        natives: ``Armed.native`` of each process.
    """
    if all(native is False for native in natives):
        return ""
    return "; add --c-calls to see methods written in C"


def _near(armed: Armed) -> list[str]:
    """Return names similar to the unmatched selectors, safe to show."""
    words = (
        (one.word.removesuffix(one.name or ""), one.name or "")
        for one in armed.unmatched[:_MOST_NAMES]
        if one.owner
    )
    found = (_close(*word, armed.near) for word in words)
    unique = dict.fromkeys(name for near in found for name in near)
    return [name[:_NAME] for name in unique][:_MOST_NAMES]


def _close(owner: str, name: str, near: Sequence[str]) -> list[str]:
    """Return similar methods of the owner, or else of similar owners."""
    own = {one.removeprefix(owner): one for one in near if one.startswith(owner)}
    names = difflib.get_close_matches(name, own, 3, 0.6)
    others = [one for one in near if one not in own.values()]
    return [own[one] for one in names] or difflib.get_close_matches(
        f"{owner}{name}", others, 3, 0.75
    )
