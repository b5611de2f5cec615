"""Paths as people read them: of the application, of a gem."""

from __future__ import annotations

from rbtrace_py.aggregate.sourcepaths import gem_path


def shown_path(path: str, folder: str) -> str:
    """``puma-5.6.5 lib/puma/server.rb``; ``app/shop.rb`` of the application's folder.

    folder: the working directory of the process, empty where it is not known
    """
    gem = gem_path(path)
    if gem is not None:
        return " ".join(gem)
    if folder and path.startswith(f"{folder}/"):
        return path[len(folder) + 1 :]
    return path
