"""Short forms of paths in the application or in a gem."""

from __future__ import annotations

from rbtrace_py.aggregate.sourcepaths import gem_path


def shown_path(path: str, folder: str) -> str:
    """Return ``puma-5.6.5 lib/puma/server.rb``, or ``app/shop.rb`` for the application.

    Args:
        path: Path of a Ruby file.
        folder: Working directory of the process; empty if it is unknown.
    """
    gem = gem_path(path)
    if gem is not None:
        return " ".join(gem)
    if folder and path.startswith(f"{folder}/"):
        return path[len(folder) + 1 :]
    return path
