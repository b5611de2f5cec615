"""Options of a sampling: which threads, how often, and by which engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rbtrace_py.rubyvm.saved import SavedLayout
from rbtrace_py.session.stacks.ruby_process import KERNEL_MODES, SamplingMode
from rbtrace_py.session.targets.confirmation import Confirm, accept_none

MAX_RATE = 100_000.0
MAX_KERNEL_RATE = 10_000.0
"""Each tick interrupts every CPU of the machine, whatever runs there."""


class EngineChoice(str, Enum):
    """Engines that read stacks."""

    AUTO = "auto"
    """The kernel if possible, else this process."""
    BPF = "bpf"
    """The kernel, in the thread's own context."""
    MEMORY = "memory"
    """This process, from the target's memory."""


@dataclass(frozen=True, slots=True)
class EventChoice:
    """Events at which stacks are walked in mode event.

    Attributes:
        word: Name of a probe, ``uprobe:LIB:SYMBOL``, ``tracepoint:CATEGORY:NAME``, or
            ``syscall:NAME``.
        every: Walk at every Nth event of a thread.
        weight: Argument of the event that is the stack's weight; None: weigh 1.
        confirm: As in ``ProbeOptions``.
        at_any_cost: Continue above ``event_cost.MOST_SHARE`` of a CPU.
        unit: Unit of the weight: ``bytes`` or ``ns``; None: ns if its name ends in
            ``_ns``.
    """

    word: str
    every: int = 1
    weight: str | None = None
    confirm: Confirm = accept_none
    at_any_cost: bool = False
    unit: str | None = None

    @property
    def unit_of_weights(self) -> str:
        """The unit for ``Statistics``."""
        if self.weight is None:
            return "events"
        return self.unit or ("ns" if self.weight.endswith("_ns") else "weight")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options that the sampling commands share.

    Attributes:
        rate: Sampling passes per second.
        mode: Threads to sample.
        idle: In modes wall and gvl, include sleeping threads.
        pause: Stop the target while its stacks are read.
        ruby_version: Version to use instead of the detected one.
        saved: Layout from a file, which takes precedence.
        wait_seconds: Seconds to wait until a program that we started runs Ruby; None:
            no limit.
        engine: Engine that reads the stacks.
        is_counted: The sampling ends after a number of samples.
        each: Keep every sample of at least this weight, with its time. Lighter samples
            are summed per second. 0: keep none.
        least_ns: In mode offcpu, ignore shorter times.
        event: In mode event, the events.
        kernel_frames: Include the kernel's frames.
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
    def may_choose(self) -> bool:
        """True if either engine may read the stacks."""
        return self.engine is EngineChoice.AUTO and not self.bpf_only_option

    @property
    def bpf_only_option(self) -> str:
        """The option that the memory engine lacks, or an empty string."""
        if self.event is not None:
            return "--on"
        if self.kernel_frames:
            return "--kernel"
        return f"--mode {self.mode.value}" if self.mode in KERNEL_MODES else ""
