"""The traced programs, and the bare session with which others are compared."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rbtrace_py.bpf.attach import Attacher
from rbtrace_py.bpf.probe_engine import AttachRequest, Engine
from rbtrace_py.bpf.slots import Slot
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.probes.count import Count
from rbtrace_py.session.targets.targets import Targets

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIBRARY = ROOT / "ext" / "libstapsdt"
PARTS = 8


class Target:
    """A program that answers each command on its standard input with a line."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        # The last CPU: migrations of a program would distort its measurements.
        with suppress(OSError):
            os.sched_setaffinity(self.pid, {max(os.sched_getaffinity(0))})
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def in_real_time(self) -> None:
        """Run its main thread with priority over other programs, if permitted."""
        with suppress(PermissionError):
            os.sched_setscheduler(self.pid, os.SCHED_RR, os.sched_param(1))

    def ask(self, command: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(command + "\n")
        answer = self._process.stdout.readline()
        assert answer, f"the target ended over {command!r}"
        return answer.strip()

    def hit(
        self, command: str, times: int, after: Callable[[], None] = lambda: None
    ) -> float:
        """Return nanoseconds per hit: the best of PARTS runs of ``times`` hits.

        The best is used because other programs on the core can only add time. ``after``
        is called after each run.
        """
        found = []
        for _ in range(PARTS):
            found.append(float(self.ask(f"{command} {times}")))
            after()
        return min(found)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def c_target() -> Target:
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "target"
        sources = [HERE / "target.c", *sorted((LIBRARY / "src").glob("*.c"))]
        include = [f"-I{LIBRARY}", f"-I{LIBRARY / 'src'}"]
        subprocess.run(
            ["cc", "-O2", *include, "-o", program, *sources, "-ldl", "-lpthread"],
            check=True,
        )
        return Target(str(program))


def ruby_target(script: str = "enabled.rb") -> Target:
    return Target("ruby", f"-I{ROOT / 'ruby' / 'lib'}", str(HERE / "ruby" / script))


class Bare(Count):
    """An empty BPF program on probes, or a program that only fetches the operands."""

    def __init__(
        self, targets: Targets, words: Sequence[str], reads: bool = False
    ) -> None:
        super().__init__(targets, words)
        self._reads = reads
        self._slots = 0

    def plan(self, probes: Sequence[Probe]) -> None:
        super().plan(probes)
        counts = [len(probe.operands) for probe in self.picked(probes)]
        self._slots = max(counts) if self._reads else 0

    def make_engines(self, attacher: Attacher) -> None:
        flags = {"READS": int(self._reads), "FILTER_BASE": self._slots}
        source = str(HERE / "bpf" / "bare.c")
        self._engines.append(Engine(attacher, None, source, {}, flags, {}))

    def requests(self, engine: int, probes: Sequence[Probe]) -> list[AttachRequest]:
        slots = tuple(Slot(operand=index) for index in range(self._slots))
        return [AttachRequest(probe, 0, slots) for probe in self.picked(probes)]
