"""Sampling: repeated reads of the stacks of a set of processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.errors import (
    NoSuchTarget,
    NotRuby,
    RbtraceError,
    UnknownRuby,
    UsageError,
    VmNotStarted,
)
from rbtrace_py.linux.closing import Starting
from rbtrace_py.linux.kernel import missing_for_bpf
from rbtrace_py.linux.process import Process
from rbtrace_py.model.recording_meta import RUN_TIME, Meta
from rbtrace_py.model.stacks import Sample
from rbtrace_py.session.stacks.ruby_process import RubyProcess, SamplingMode
from rbtrace_py.session.stacks.sampling_options import (
    MAX_KERNEL_RATE,
    MAX_RATE,
    EngineChoice,
    SamplingOptions,
)
from rbtrace_py.session.targets.non_ruby import NonRubyProcesses
from rbtrace_py.session.targets.notes import Notes, skipped
from rbtrace_py.session.targets.targets import Targets

if TYPE_CHECKING:
    from rbtrace_py.session.stacks.kernel_stacks import KernelStacks
    from rbtrace_py.session.stacks.stack_events import EventSampling

_START_SECONDS = 0.002
"""Seconds between attempts to attach to a program that we started."""

_STARTING_SECONDS = 10.0
"""Minimum time limit in seconds for the initialization of a program that we started."""

_YOUNG_SECONDS = 2.0
"""Seconds to wait for a VM that exists but is not initialized."""

_BROKEN_REFRESHES = 3
"""Consecutive refreshes without a readable stack after which we attach to a process
again. If the process executes another program, this happens at once."""

_SEEN_ALWAYS = (SamplingMode.WALL, SamplingMode.GVL)
"""Modes in which each pass of the memory engine yields samples."""

_RUN_TIME_MODES = (SamplingMode.CPU, SamplingMode.WALL)
"""Modes in which weights are run time."""

Add = Callable[[Sample], object]


class MemoryEngine:
    """The engine that reads stacks from memory. It has the methods of KernelStacks."""

    name = EngineChoice.MEMORY.value
    started_ns = 0
    events = None

    def attach(self, *unused: object) -> None:
        """Do nothing: each ``RubyProcess`` reads its own stacks."""

    start = refresh = detach = close = attach


class Sampling(Starting):
    """Samples the stacks of processes. Entering the context manager attaches.

    Args:
        targets: The processes. The caller closes them.
        options: Options of the sampling.

    Attributes:
        engine: Engine that reads the stacks, which entering chooses.
        statistics: Numbers of samples, failures, and delays.
        notes: Notes for the user, one per line.
        stopped_ns: With ``pause``, how long the targets were stopped, in ns.

    Raises:
        NoSuchTarget, NotPermitted, NotRuby, UnknownRuby, UsageError
    """

    def __init__(
        self, targets: Targets, options: SamplingOptions | None = None
    ) -> None:
        self.targets = targets
        self.options = options or SamplingOptions()
        if not 0 < self.options.rate <= MAX_RATE:
            raise UsageError(f"invalid rate: {self.options.rate:g}")
        self.statistics = Statistics("ns", self.options.rate)
        self.notes = Notes()
        self.on_wait: Callable[[float], None] | None = None
        self.stop: Callable[[], bool] = lambda: False
        self._rubies: dict[int, RubyProcess] = {}
        self._non_ruby = NonRubyProcesses()
        self._versions: dict[str, None] = {}
        self._folder = ""
        self._stopped_ns = 0
        self._has_samples = False
        self.engine: MemoryEngine | KernelStacks = MemoryEngine()

    def _start(self) -> None:
        if self.targets.command is not None:
            self._choose_engine()  # first: the program would run meanwhile
            self.targets.start_held()
            self._attach_first()
        else:
            self._attach_first()  # report a wrong PID at once
            self._choose_engine()
        self.engine.start(self.targets)
        self.statistics.engine = self.engine.name
        now = time.time_ns()
        self.statistics.started_ns = self.engine.started_ns or now
        self.statistics.ended_ns = now
        self.targets.release()

    def _choose_engine(self) -> None:
        """Let the kernel walk the stacks if this is requested and possible.

        Raises UsageError, and the errors of ``KernelStacks`` if the user chose it.
        """
        options = self.options
        if options.engine is EngineChoice.MEMORY:
            if word := options.bpf_only_option:
                raise UsageError(
                    f"--engine memory and {word} cannot be combined",
                    f"{word} needs the BPF engine: leave out --engine",
                )
            return
        other = _only_memory(options)
        if other:
            if word := options.bpf_only_option:
                raise UsageError(f"{word} and {other} cannot be combined")
            if options.engine is EngineChoice.BPF:
                raise UsageError(f"--engine bpf and {other} cannot be combined")
            return
        if options.may_choose and options.mode in _SEEN_ALWAYS and options.is_counted:
            return  # the kernel takes no samples of a sleeping thread
        missing = missing_for_bpf()
        if options.may_choose and missing:
            self.notes.add(
                "stacks are read from memory, which costs more CPU: the BPF engine"
                f" needs {missing} (docs/install.md, Without root)"
            )
            return
        # Import late: only BPF needs these modules.
        from rbtrace_py.session.stacks.kernel_stacks import KernelStacks

        try:
            self.engine = KernelStacks(
                options, self.targets.follow, self.statistics, self.notes
            )
        except RbtraceError as error:
            if not options.may_choose:
                raise
            hint = f". {error.hint}" if error.hint else ""
            self.notes.add(f"stacks are read from memory: {error}{hint}")
        for pid, ruby in list(self._rubies.items()):
            try:
                self._attach_engine(ruby)
            except NoSuchTarget:
                if len(self._rubies) == 1:  # one of many may have just ended
                    raise
                self._detach(pid)

    def _attach_engine(self, ruby: RubyProcess) -> None:
        """Attach the engine to a process. If BPF cannot walk it, use memory for all.

        Raises:
            UnknownRuby: BPF cannot walk it, and the engine is fixed.
        """
        try:
            self.engine.attach(ruby)
        except UnknownRuby as error:
            if self.statistics.started_ns or not self.options.may_choose:
                raise
            self.notes.add(f"stacks are read from memory: {error}")
            self.engine.close()
            self.engine = MemoryEngine()

    # -------------------------------------------------------------- attaching

    def _attach_first(self) -> None:
        if self.targets.command is not None:
            self._wait_for_ruby()
            return
        processes = self.targets.alive()
        for process in processes:
            try:
                self._attach_young(process)
            except NoSuchTarget:
                if len(processes) == 1:  # one of many may have just ended
                    raise
            except NotRuby as error:
                if len(processes) == 1 or not self.targets.follow:
                    raise
                self._non_ruby.add(process)
                self.notes.add(str(error))
            except RbtraceError as error:
                if not self.targets.has_joined(process):
                    raise
                self._skip(process, error)
        if not self._rubies:
            raise NoSuchTarget("none of the processes runs Ruby")

    def _attach_young(self, process: Process) -> None:
        """Attach to a process that may have just started."""
        end = time.monotonic() + _YOUNG_SECONDS
        while True:
            try:
                self._attach(process)
                return
            except VmNotStarted:
                if self.stop() or time.monotonic() >= end:
                    raise
            time.sleep(_START_SECONDS)

    def _wait_for_ruby(self) -> None:
        """Wait until the program that we started has a VM."""
        start = time.monotonic()
        limit = self.options.wait_seconds
        while True:
            error = self._attach_any()
            if error is None:
                return
            waited = time.monotonic() - start
            if not self.targets.alive() or self.stop():
                raise error
            if limit is not None and waited >= _patience(limit, error):
                raise error
            if self.on_wait is not None:
                self.on_wait(waited)
            self.targets.wait(_START_SECONDS, isinstance(error, VmNotStarted))

    def _attach_any(self) -> RbtraceError | None:
        """Attach to processes that run Ruby by now; if none does, return why."""
        self.targets.refresh()
        found: RbtraceError = NoSuchTarget("the program has exited")
        for process in self.targets.alive():
            try:
                self._attach(process)
            except (NotRuby, NoSuchTarget) as error:
                found = error
        return None if self._rubies else found

    def _attach(self, process: Process) -> None:
        self._detach(process.pid)
        ruby = RubyProcess(process, self.options.ruby_version, self.options.saved)
        self._rubies[process.pid] = ruby
        self._attach_engine(ruby)
        self._versions[ruby.version] = None
        self._folder = self._folder or process.folder
        self.notes.add(*ruby.notes)

    def _detach(self, pid: int) -> None:
        ruby = self._rubies.pop(pid, None)
        if ruby is None:
            return
        self.engine.detach(ruby)
        self.statistics.failed += ruby.take_failed()
        self._stopped_ns += ruby.stopped_ns
        ruby.close()

    # --------------------------------------------------------------- sampling

    @property
    def is_over(self) -> bool:
        """True if no Ruby process is left and none can appear."""
        if self._rubies:
            return False
        alive = self.targets.alive()
        if self.targets.command is not None or self.targets.follow:
            return not alive
        return all(process in self._non_ruby for process in alive)

    @property
    def rubies(self) -> tuple[RubyProcess, ...]:
        """The processes that are sampled now."""
        return tuple(self._rubies.values())

    @property
    def stopped_ns(self) -> int:
        return self._stopped_ns + sum(r.stopped_ns for r in self._rubies.values())

    @property
    def events(self) -> EventSampling | None:
        """In mode event, the events."""
        return self.engine.events

    @property
    def meta(self) -> Meta:
        """Metadata for a recording of this sampling."""
        return Meta(
            started_ns=self.statistics.started_ns,
            unit=self.statistics.unit,
            rate=self.options.rate,
            mode=self.options.mode.value,
            event=self.options.event.word if self.options.event else "",
            argument=(self.options.event and self.options.event.weight) or "",
            weights=RUN_TIME if self.options.mode in _RUN_TIME_MODES else "",
            engine=self.engine.name,
            pids=self.targets.pids,
            command=self.command,
            rubies=tuple(self._versions),
            folder=self._folder,
        )

    @property
    def command(self) -> str:
        """The command line of the first target that still runs."""
        for process in self.targets.processes.values():
            return " ".join(process.cmdline)
        return ""

    def sample(self, add: Add) -> None:
        """Take one sampling pass over all processes.

        Before the first sample, errors of ``RubyProcess.samples`` are raised.
        """
        mode, pause = self.options.mode, self.options.pause
        ended = None
        for pid, ruby in self._rubies.items():
            try:
                for sample in ruby.samples(mode, pause):
                    self._has_samples = True
                    add(sample)
            except NoSuchTarget:
                ended = pid
            except RbtraceError as error:
                if not self._has_samples:
                    raise
                # Keep the earlier samples; the next pass may succeed.
                self.notes.add(f"process {pid} could not be read at times: {error}")
        if ended is not None:  # the next pass removes other ended processes
            self._detach(ended)

    def refresh(self) -> None:
        """Update processes and threads, about every ``REFRESH_SECONDS``."""
        alive = {process.pid: process for process in self.targets.alive()}
        for pid in self._rubies.keys() - alive.keys():
            self._detach(pid)
        self._non_ruby.keep(alive.values())
        self.targets.refresh()
        for pid, process in list(self.targets.processes.items()):
            self._keep_up(pid, process)
        self.statistics.ended_ns = time.time_ns()

    def _keep_up(self, pid: int, process: Process) -> None:
        ruby = self._rubies.get(pid)
        try:
            if ruby is None:
                if self._non_ruby.is_due(process):
                    self._attach(process)
            elif ruby.has_executed or ruby.broken_refreshes >= _BROKEN_REFRESHES:
                has_executed = ruby.has_executed
                self._attach(process)
                if self.events is not None and has_executed:
                    self.statistics.has_gaps = True
                    self.notes.add(
                        f"process {pid} executed another program: its first events"
                        " are missing"
                    )
            else:
                ruby.refresh()
                self.engine.refresh(ruby)
                self.statistics.failed += ruby.take_failed()
        except VmNotStarted:
            return
        except NoSuchTarget:
            if ruby is not None and self._rubies.get(pid) is ruby:
                self._detach(pid)
        except RbtraceError as error:
            self._skip(process, error)

    def _skip(self, process: Process, error: RbtraceError) -> None:
        """Stop sampling a process that does not run a readable Ruby."""
        self._detach(process.pid)
        is_young = process.age < _YOUNG_SECONDS
        if is_young and not self.targets.follow:
            return  # it may become a Ruby process, which the next refresh will show
        may_become = is_young or isinstance(error, NotRuby)
        self._non_ruby.add(process, may_become)
        # Children run all kinds of programs. Do not mention each of them.
        if not may_become or not self.targets.follow:
            self.notes.add(skipped(process.pid, error))

    def close(self) -> None:
        """Release all processes; may be called twice. The caller closes the targets."""
        for pid in list(self._rubies):
            self._detach(pid)
        self.engine.close()


def _only_memory(options: SamplingOptions) -> str:
    """Return the option that the BPF engine lacks, or an empty string."""
    if options.pause:
        return "--pause"
    if options.rate > MAX_KERNEL_RATE:
        return f"--rate above {MAX_KERNEL_RATE:g}"
    return ""


def _patience(limit: float, error: RbtraceError) -> float:
    """Return the seconds to wait for a Ruby. A started Ruby gets more time."""
    return max(limit, _STARTING_SECONDS) if isinstance(error, VmNotStarted) else limit
