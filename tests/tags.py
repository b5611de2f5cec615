"""The frames of tests/targets/stacks/stack_tags.rb, and their possible callers."""

from __future__ import annotations

import re

from rbtrace_py.model.stacks import Frame

LEVELS = 12
TAG = re.compile(r"(block in )?(?:Object#)?t(\d+)_(\d)")
NEXT = {2: "Object#again", 3: "Array#each"}
"""The methods that a level's methods call instead of the next level's
(stack_tags.rb)."""


def contradiction(frames: tuple[Frame, ...]) -> str | None:
    """Name two frames of stack_tags.rb that cannot call each other, if there are
    any."""
    below: tuple[int, int, int | None] | None = None
    last = ""
    for frame in frames:
        match = TAG.fullmatch(frame.name)
        if below and not (match and match[1]) and last:
            expected = NEXT.get(below[0] % 4)
            if expected and frame.name != expected:
                return f"{frame.name} upon {last}"
        last = ""
        if not match:
            continue
        tag = (int(match[2]), int(match[3]), frame.line)
        if below is not None and not may_follow(below, tag, bool(match[1])):
            return f"{tag} upon {below}"
        below = tag
        last = "" if match[1] else frame.name
    return None


def may_follow(
    below: tuple[int, int, int | None], tag: tuple[int, int, int | None], is_block: bool
) -> bool:
    if below[2] is None:
        return False  # only the newest frame can be on no line
    if is_block:
        return tag[:2] == below[:2] and tag[2] in (below[2], None)
    site = below[2] - 100 * (below[0] + 1) - 10 * below[1]
    callee = (below[1] + site) % 4
    return 0 <= site <= 2 and tag[:2] == (below[0] + 1, callee)
