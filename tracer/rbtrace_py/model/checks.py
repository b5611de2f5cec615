"""One line of what ``doctor`` found, as a report sees it."""

from __future__ import annotations

from typing import Protocol


class Check(Protocol):
    """What was looked at, what was found, and what to do about it.

    status: ``ok``, ``warn`` or ``fail``
    advice: empty where there is nothing to do
    """

    @property
    def name(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def advice(self) -> str: ...
