"""One line of what ``doctor`` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Check:
    """name: what was looked at; detail: what was found; advice: what to do."""

    status: Status
    name: str
    detail: str
    advice: str = ""
