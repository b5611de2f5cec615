"""What of a set of processes is sampled, how often, and by what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rbtrace_py.rubyvm.saved import SavedLayout
from rbtrace_py.session.stacks.ruby_process import KERNEL_MODES, SamplingMode
from rbtrace_py.session.targets.confirmation import Confirm, accept_none

MAX_RATE = 100_000.0
MAX_KERNEL_RATE = 10_000.0
"""Each tick interrupts every processor of the machine, whatever it does."""


class EngineChoice(str, Enum):
    """Engines: what reads the stacks."""

    AUTO = "auto"
    """The kernel where it can, else this process."""
    BPF = "bpf"
    """The kernel, in the thread's own context."""
    MEMORY = "memory"
    """This process, from the other's memory."""


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Events at which stacks are walked in mode event.

    word: a probe's name, ``uprobe:LIB:SYMBOL``, ``tracepoint:CATEGORY:NAME`` or
        ``syscall:NAME``
    every: walk at each of so many events of a thread
    weight: argument of the event that its stack weighs; None: 1
    unit: unit of that argument: ``bytes`` or ``ns``; None: ns if its name says so
    confirm: as ``ProbeOptions`` has it
    at_any_cost: go on where it takes more than ``event_cost.MOST_SHARE`` of a CPU
    """

    word: str
    every: int = 1
    weight: str | None = None
    confirm: Confirm = accept_none
    at_any_cost: bool = False
    unit: str | None = None

    @property
    def unit_of_weights(self) -> str:
        """The unit as ``Statistics`` has it."""
        if self.weight is None:
            return "events"
        return self.unit or ("ns" if self.weight.endswith("_ns") else "weight")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options that the commands that sample share.

    rate: sampling passes per second
    idle: in modes wall and gvl, also threads that sleep
    pause: stop the target while its stacks are read
    ruby_version: instead of what the target says of itself
    saved: a layout from a file, trusted most
    wait_seconds: how long to wait for a program of ours to become a Ruby; None: always
    is_counted: a number of samples ends it
    each: keep every sample that weighs at least so much, with its time; 0: none.
        Those that weigh less are summed up for a second
    least_ns: in mode offcpu, shorter times do not count
    event: in mode event, which
    kernel_frames: the kernel's frames, too
    """

    rate: float = 99.0
    mode: SamplingMode = SamplingMode.CPU
    idle: bool = True
    pause: bool = False
    ruby_version: str | None = None
    saved: SavedLayout | None = None
    wait_seconds: float | None = None
    engine: EngineChoice = EngineChoice.MEMORY
    is_counted: bool = False
    each: int = 0
    least_ns: int = 0
    event: EventChoice | None = None
    kernel_frames: bool = False

    @property
    def bpf_only_option(self) -> str:
        """Return the option that the memory engine has not; empty if there is none."""
        if self.event is not None:
            return "--on"
        if self.kernel_frames:
            return "--kernel"
        return f"--mode {self.mode.value}" if self.mode in KERNEL_MODES else ""
