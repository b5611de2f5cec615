"""Description of a recording: its targets, mode, and units."""

from __future__ import annotations

from dataclasses import dataclass

RUN_TIME = "run time"
"""``weights`` of recordings that assign run time to stacks found running."""
CALLS_MODE = "calls"
"""``mode`` of recordings of calls."""


@dataclass(frozen=True, slots=True)
class Meta:
    """Description of a recording's section. Unknown strings are empty.

    Attributes:
        started_ns: Start of the section, CLOCK_REALTIME; 0 if unknown.
        unit: Unit of weights, as in ``Statistics``.
        rate: Requested sampling passes per second.
        mode: ``cpu``, ``wall``, ``offcpu``, ``gvl``, or ``event``.
        engine: ``bpf``, ``memory``, or ``agent``.
        pids: PIDs of the targets.
        command: Command line of the target.
        rubies: Ruby versions of the targets.
        tool: Name and version of the program that made the recording.
        folder: Working directory of the target.
        most_calls: Number of calls to read in a recording of calls; 0 for all.
        event: In mode event, the event at which stacks were read.
        argument: Argument of the event that is the weight.
        weights: RUN_TIME if run time is assigned to stacks found running; recordings
            of older versions lack it.
    """

    started_ns: int = 0
    unit: str = "samples"
    rate: float = 0.0
    mode: str = ""
    engine: str = ""
    pids: tuple[int, ...] = ()
    command: str = ""
    rubies: tuple[str, ...] = ()
    tool: str = ""
    folder: str = ""
    most_calls: int = 0
    event: str = ""
    argument: str = ""
    weights: str = ""
