"""Checks of ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CheckStatus(str, Enum):
    """``warn``: something is slower, or one feature is missing."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; ``advice`` says what to do, and is empty if ok."""

    name: str
    status: CheckStatus
    text: str
    advice: str = ""
