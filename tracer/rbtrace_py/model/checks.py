"""Checks of ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CheckStatus(str, Enum):
    """Status of a check; ``warn`` if something is slower or a feature is missing."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; ``advice`` is an instruction, and empty if ok."""

    name: str
    status: CheckStatus
    text: str
    advice: str = ""
