"""Options of Ruby with which a program that is started has an agent."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rbtrace_py.agent.hook import NotBuilt, hook
from rbtrace_py.linux import cache

_FIRST = Path(__file__).parent / "first"
_HOOK = "rbtrace-hook"
"""How the hook's folder is called; first/tracepoint/agent.rb knows it by that."""


def options() -> list[str]:
    """Words for RUBYOPT: the gem's agent is loaded where that Ruby has the gem, else
    ours, with its hook if that can be built and kept.

    A program that cannot see our files is to find the gem's, as without us.
    """
    folders = [os.path.realpath(_FIRST), _hook_folder()]
    return [
        *(f"-I{each}" for each in folders if each and _is_fit(each)),
        "-rtracepoint/agent",
    ]


def _is_fit(folder: str) -> bool:
    """RUBYOPT has no quotes."""
    return not any(each.isspace() or each == os.pathsep for each in folder)


def _hook_folder() -> str:
    """A folder in which Ruby finds the hook; empty if there is none."""
    try:
        data = hook()
    except NotBuilt:
        return ""
    key = f"{_HOOK}-{hashlib.sha256(data).hexdigest()[:16]}"
    kept = cache.store_file("hook", key, "tracepoint/agent_hook.so", data)
    return str(kept or "")
