"""Notes on how a process's methods are hooked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from rbtrace_py.agent.arming import Armed

_WHY = 512
"""Characters of a reason, or of a name, that are shown."""


def hook_notes(pid: int, armed: Armed) -> list[str]:
    """Return lines: which methods are hooked, and why it is all where it is all."""
    if armed.targets == 0 and armed.native:
        return [f"process {pid}: what matches is no Ruby code; --c-calls shows it"]
    if armed.targets == 0:
        near = _near(armed)
        meant = f" (did you mean {', '.join(near)}?)" if near else ""
        return [f"process {pid}: no method matches yet{meant}; new ones are looked for"]
    if armed.targets is not None:
        methods = "1 method" if armed.targets == 1 else f"{armed.targets} methods"
        return [f"process {pid}: {methods} hooked and no other"]
    if armed.why_all:
        why = armed.why_all[:_WHY]
        return [f"process {pid}: all methods are hooked, not the selected alone: {why}"]
    return []


def c_calls_hint(natives: Iterable[bool | None]) -> str:
    """Return the advice to see C functions too; empty where that cannot help.

    natives: ``Armed.native`` of each process
    """
    if all(native is False for native in natives):
        return ""
    return "; add --c-calls to see methods written in C"


def _near(armed: Armed) -> list[str]:
    """Return names similar to those of the selectors."""
    marks = {"instance": "#", "singleton": "."}
    words = (
        (f"{one.owner}{marks.get(one.kind or '', '')}", one.name or "")
        for one in armed.select
        if one.owner
    )
    found = (_close(*word, armed.near) for word in words)
    unique = dict.fromkeys(name for near in found for name in near)
    return [name[:_WHY] for name in unique][:3]


def _close(owner: str, name: str, near: Sequence[str]) -> list[str]:
    """Methods of that owner with such a name; else of owners with such a name."""
    own = {one.removeprefix(owner): one for one in near if one.startswith(owner)}
    names = difflib.get_close_matches(name, own, 3, 0.6)
    others = [one for one in near if one not in own.values()]
    return [own[one] for one in names] or difflib.get_close_matches(
        f"{owner}{name}", others, 3, 0.75
    )
