"""Start a program with the agent, and hold it until it is traced.

docs/agent.md, "The start of a program".
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from rbtrace_py.agent.hook import NotBuilt, hook
from rbtrace_py.linux import cache

_FIRST = Path(__file__).parent / "first"
_HOOK = "rbtrace-hook"
"""How the hook's folder is called; first/tracepoint/agent.rb knows it by that."""
_FEATURE = "tracepoint/agent"
_OPTIONS = "RUBYOPT"
_WAIT = "TRACEPOINT_AGENT_WAIT"
HOLD_SECONDS = 30.0
"""So long a program of ours does nothing at most, until it is armed."""
_MOST_SECONDS = 3600.0


def environment(seconds: float, before: Mapping[str, str]) -> dict[str, str]:
    """Variables for a program that we start: beside those of ``before``, or instead.

    Each Ruby that it is, one after the other, waits up to ``seconds`` for us.
    """
    milliseconds = round(min(seconds, _MOST_SECONDS) * 1000)
    found = {_WAIT: f"{milliseconds}:{os.getpid()}"}
    given = before.get(_OPTIONS, "")
    if _FEATURE not in given:
        found[_OPTIONS] = " ".join(filter(None, (given, *options())))
    return found


def begun_before(pid: int) -> str:
    """Return what to tell the user about a program of ours that did not wait."""
    return f"process {pid} did not wait for tracing: its first events may be missing"


def options() -> list[str]:
    """Words for RUBYOPT: the gem's agent is loaded where that Ruby has the gem, else
    ours, with its hook if that can be built and kept.

    A program that cannot see our files is to find the gem's, as without us.
    """
    folders = [os.path.realpath(_FIRST), _hook_folder()]
    return [
        *(f"-I{each}" for each in folders if each and _is_fit(each)),
        f"-r{_FEATURE}",
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
