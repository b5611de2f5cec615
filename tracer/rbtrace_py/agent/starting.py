"""Starting a program with the agent, and holding it until it is traced.

See docs/agent.md, "The start of a program".
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
"""Name of the hook's folder, which first/tracepoint/agent.rb searches."""
_FEATURE = "tracepoint/agent"
_OPTIONS = "RUBYOPT"
_WAIT = "TRACEPOINT_AGENT_WAIT"
HOLD_SECONDS = 30.0
"""Maximum time in seconds that a started program waits until it is armed."""
_MOST_SECONDS = 3600.0


def environment(seconds: float, before: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a program that we start, to be merged into ``before``.

    Each Ruby that the process runs, one after the other, waits up to ``seconds`` for
    us.
    """
    milliseconds = round(min(seconds, _MOST_SECONDS) * 1000)
    found = {_WAIT: f"{milliseconds}:{os.getpid()}"}
    given = before.get(_OPTIONS, "")
    if _FEATURE not in given:
        found[_OPTIONS] = " ".join(filter(None, (given, *options())))
    return found


def begun_before(pid: int) -> str:
    """Return a message about a started program that did not wait."""
    return f"process {pid} did not wait for tracing: its first events may be missing"


def options() -> list[str]:
    """Return words for RUBYOPT: they load the gem's agent if that Ruby has the gem.

    Otherwise they load our agent, with its hook if that can be built and stored. A
    program that cannot read our files still finds the gem.
    """
    folders = [os.path.realpath(_FIRST), _hook_folder()]
    return [
        *(f"-I{each}" for each in folders if each and _is_fit(each)),
        f"-r{_FEATURE}",
    ]


def _is_fit(folder: str) -> bool:
    """Return whether RUBYOPT, which has no quoting, can contain the path."""
    return not any(each.isspace() or each == os.pathsep for each in folder)


def _hook_folder() -> str:
    """Return a folder in which Ruby finds the hook, or ""."""
    try:
        data = hook()
    except NotBuilt:
        return ""
    key = f"{_HOOK}-{hashlib.sha256(data).hexdigest()[:16]}"
    kept = cache.store_file("hook", key, "tracepoint/agent_hook.so", data)
    return str(kept or "")
