"""What is to be said of a process's Ractors."""

from __future__ import annotations


def unseen_ractors(pid: int, ractors: int, unseen: int) -> list[str]:
    """ractors: how many there are; unseen: how many of them the hook is not in."""
    if unseen <= 0:
        return []
    if unseen == ractors - 1:
        return [f"process {pid} has {ractors} Ractors; only the main one is seen"]
    them = "1 of them is" if unseen == 1 else f"{unseen} of them are"
    return [f"process {pid} has {ractors} Ractors; {them} not seen"]
