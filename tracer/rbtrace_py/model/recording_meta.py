"""Description of a recording: who was recorded, how, and in which units."""

from __future__ import annotations

from dataclasses import dataclass

RUN_TIME = "run time"
"""``weights`` of recordings whose running time belongs to stacks seen running."""
CALLS_MODE = "calls"
"""``mode`` of recordings of calls."""


@dataclass(frozen=True, slots=True)
class Meta:
    """Description of a recording's section. Unknown texts are empty.

    unit: unit of weights, as in ``Statistics``
    rate: requested sampling passes per second
    mode: ``cpu``, ``wall``, ``offcpu``, ``gvl`` or ``event``
    engine: ``bpf``, ``memory`` or ``agent``
    command: command line of the target
    rubies: Ruby versions of the targets
    tool: name and version of the program that made the recording
    folder: working directory of the target
    most_calls: number of calls to read in a recording of calls; 0: all
    event: event at which stacks were read, in mode event
    argument: argument of the event that gives the weight
    weights: RUN_TIME if running time belongs to the stacks that were seen running;
        recordings of older versions lack it
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
