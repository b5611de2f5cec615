"""Results of ``attach`` and ``detach``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of loading the agent into a process.

    Attributes:
        attempts: Number of times that the process's main thread was stopped.
        stopped_ns: Total time for which it was stopped.
        longest_ns: Longest time for which it was stopped at once.
        answer_ns: Time from the start to the agent's first answer.
    """

    attempts: int
    stopped_ns: int
    longest_ns: int
    answer_ns: int


@dataclass(frozen=True, slots=True)
class AttachResult:
    """An agent that answers in a process.

    Attributes:
        pid: Process id.
        cost: Cost of loading it; None if it was already loaded.
        ruby: Ruby version that the agent reports.
        without_hook: Reason why it cannot hook method events; None if it can.
    """

    pid: int
    cost: Cost | None
    ruby: str
    without_hook: str | None


@dataclass(frozen=True, slots=True)
class Detached:
    """An agent that was shut down.

    Attributes:
        pid: Process id.
        tracer: PID of the tracer that had armed it; None if it was not armed.
    """

    pid: int
    tracer: int | None
