"""Notes on how a process's methods are hooked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from rbtrace_py.agent.arming import Armed

_WHY = 512
"""Characters of a reason, or of a name, that are shown."""


def hook_notes(pid: int, armed: Armed, c_calls: bool) -> list[str]:
    """Return lines that say which methods are hooked, and why all are if all are.

    Args:
        pid: Number of the process.
        armed: Its hook.
        c_calls: True if methods written in C are hooked, too.
    """
    if armed.targets == 0 and armed.native and not c_calls:
        return [
            f"process {pid}: the matching methods have no Ruby code (they are written"
            " in C, or made by attr_reader and the like); --c-calls shows them"
        ]
    if armed.targets == 0 and not armed.native:
        near = _near(armed)
        meant = f" (did you mean {', '.join(near)}?)" if near else ""
        return [f"process {pid}: no method matches yet{meant}; new ones are looked for"]
    if armed.targets is not None:
        methods = "1 method" if armed.targets == 1 else f"{armed.targets} methods"
        if not c_calls:
            return [f"process {pid}: {methods} hooked and no other"]
        if armed.targets:
            return [f"process {pid}: {methods} hooked, and all that are written in C"]
        return [f"process {pid}: all methods written in C hooked and no other"]
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
