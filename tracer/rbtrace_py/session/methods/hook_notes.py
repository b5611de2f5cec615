"""Notes on how a process's methods are hooked."""

from __future__ import annotations

from rbtrace_py.agent.arming import Armed
from rbtrace_py.linux.text import safe_text

_WHY = 512
"""Bytes of a reason that are shown."""


def hook_notes(pid: int, armed: Armed) -> list[str]:
    """Return lines: which methods are hooked, and why it is all where it is all."""
    if armed.targets == 0:
        return [f"process {pid}: no method matches yet; new ones are looked for"]
    if armed.targets is not None:
        methods = "1 method" if armed.targets == 1 else f"{armed.targets} methods"
        return [f"process {pid}: {methods} hooked and no other"]
    if armed.why_all:
        why = safe_text(armed.why_all.encode(), _WHY)
        return [f"process {pid}: all methods are hooked, not the selected alone: {why}"]
    return []
