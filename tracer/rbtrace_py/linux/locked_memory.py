"""The limit of locked memory (RLIMIT_MEMLOCK) of this process.

BPF maps and programs count against it before Linux 5.11.
"""

from __future__ import annotations

import resource

_original: tuple[int, int] | None = None
"""The limit before this process raised it."""


def raise_limit() -> bool:
    """Remove the limit; return False if there is none, or without CAP_SYS_RESOURCE."""
    global _original
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit[0] == resource.RLIM_INFINITY:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    except (OSError, ValueError):
        return False
    _original = limit
    return True


def restore_limit() -> None:
    """Undo ``raise_limit``, so that a program started next does not inherit it.

    The limit can be raised again afterwards.
    """
    if _original is not None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, _original)
