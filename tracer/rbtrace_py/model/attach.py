"""Results of ``attach`` and ``detach``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of putting the agent there.

    attempts: how often its main thread was stopped
    stopped_ns, longest_ns: for how long, in all and at once
    answer_ns: from the beginning to the agent's first answer
    """

    attempts: int
    stopped_ns: int
    longest_ns: int
    answer_ns: int


@dataclass(frozen=True, slots=True)
class AttachResult:
    """The agent answers in a process.

    cost: None if it was there before
    ruby: what the agent says its Ruby is
    without_hook: why it cannot hook method events, None if it can
    """

    pid: int
    cost: Cost | None
    ruby: str
    without_hook: str | None


@dataclass(frozen=True, slots=True)
class Detached:
    """The agent was taken out of service.

    tracer: who had something armed through it, None if nobody had
    """

    pid: int
    tracer: int | None
