"""Everything that a tracer could leave behind in a process or on the system."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from forked import MARK

from processes import Target, comes_true
from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.probes import ProbeCache, StateReader, scan_probes
from rbtrace_py.linux.process import Process, parse_status
from rbtrace_py.linux.processes import descendants
from rbtrace_py.rubyvm.attach import attach

_HOOKS = 16
"""Offset of rb_ractor_t.pub.hooks.hooks (Ruby 3.0 to 4.0), after VALUE self and
uint32_t id."""
_HOOK = struct.Struct("=IIQQQ")
"""rb_event_hook_t: flags, events, func, data, next."""
_DELETED = 2
"""RUBY_EVENT_HOOK_FLAG_DELETED: inactive, and freed once no hook is running."""

_PR_SET_CHILD_SUBREAPER = 36
"""include/uapi/linux/prctl.h."""

Snapshot = dict[str, Any]


class Watched:
    """A target that runs watched.rb, and a view of its state and its surroundings."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target = target
        self.pid = target.pid
        self.folder = folder
        self._process = Process(target.pid)
        self._cache = ProbeCache()
        found = attach(self._process)
        self._memory = ProcessMemory(target.pid)
        ractor = found.layout.offsets.vm_main_ractor
        if ractor is None:
            pytest.skip("a Ruby before 3.0 keeps its hooks elsewhere")
        self._ractor = self._word(found.vm_address + ractor)
        self.first_tasks = self.tasks()

    def snapshot(self) -> Snapshot:
        return {
            "descriptors": self._descriptors(),
            "mappings": self._mappings(),
            "hooks": self.hooks(),
            "probes": self._traced(),
            "signals": self._signals(),
            "children": descendants(self.pid),
            "sockets": sorted(os.listdir(self.folder / "agent")),
            "files": self._files(),
            "forks": _forks(),
            "ruby": json.loads(self.target.step("left")),
        }

    def comes_to(self, before: Snapshot, names: Iterable[str] = ()) -> None:
        """Wait until all, or the named, parts are as before. Cleanup takes time."""
        wanted = {name: before[name] for name in names or before}
        assert comes_true(lambda: self._some(wanted) == wanted, pause=0.005), {
            name: (wanted[name], now)
            for name, now in self._some(wanted).items()
            if now != wanted[name]
        }

    def _some(self, names: Iterable[str]) -> Snapshot:
        found = self.snapshot()
        return {name: found[name] for name in names}

    def hooks(self) -> list[tuple[int, str]]:
        """Return each of Ruby's hooks as its events and the file of its function.

        The process keeps running and may free an entry before it is read. In this case,
        read the list again.
        """
        for _ in range(10):
            with suppress(UnreadableMemory):
                return self._hooks()
        return self._hooks()

    def _hooks(self) -> list[tuple[int, str]]:
        found = []
        place = self._word(self._ractor + _HOOKS)
        while place and len(found) < 100:
            data = self._memory.read(place, _HOOK.size)
            flags, events, function, _, place = _HOOK.unpack(data)
            if not flags & _DELETED:
                found.append((events, self._file_of(function)))
        return found

    def _word(self, address: int) -> int:
        return int.from_bytes(self._memory.read(address, 8), "little")

    def _file_of(self, address: int) -> str:
        for mapping in mappings(self._process):
            if mapping.start <= address < mapping.end:
                return Path(os.fsdecode(mapping.path)).name
        return hex(address)

    def _descriptors(self) -> Counter[str]:
        folder = Path(f"/proc/{self.pid}/fd")
        found: Counter[str] = Counter()
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                found[re.sub(r":\[\d+\]", "", os.readlink(folder / name))] += 1
        return found

    def _mappings(self) -> set[str]:
        """Return the named mappings. Ruby itself maps and unmaps the others."""
        found = {os.fsdecode(mapping.path) for mapping in mappings(self._process)}
        return {path for path in found if path and not path.startswith("[anon")}

    def _traced(self) -> list[str]:
        """Return the probes that are traced or whose semaphore is raised."""
        with StateReader(self._process) as reader:
            found = []
            for probe in scan_probes(self._process, self._cache).probes:
                state = reader.state(probe)
                if state.traced or state.semaphore:
                    found.append(probe.full_name)
        return found

    def _signals(self) -> dict[str, str]:
        status = parse_status(self._process.read("status"))
        names = ("SigBlk", "SigIgn", "SigCgt", "TracerPid")
        return {name: status[name] for name in names}

    def _files(self) -> set[str]:
        """Return the files that attach creates and a tracer's temporary files."""
        return places() | set(os.listdir(self.folder / "tmp"))

    def is_asked(self) -> None:
        """Wait until evaluated code has set ``$asked``, and unset it again."""
        assert comes_true(lambda: self.target.step("asked") == "true")
        self.target.step("unset")

    def tasks(self) -> int:
        """Return the number of kernel threads. Ruby's timer thread may have any
        name."""
        return len(os.listdir(f"/proc/{self.pid}/task"))


@contextmanager
def orphans_are_ours() -> Iterator[None]:
    """Become the parent of the orphans of our child processes for a while."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1) == 0
    try:
        yield
    finally:
        assert prctl(_PR_SET_CHILD_SUBREAPER, 0) == 0


def _forks() -> set[int]:
    """Return forks of this process: tracers, and their helpers that outlive them."""
    own = Path("/proc/self/cmdline").read_bytes()
    found = set()
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == own:
                found.add(pid)
    return found


def places() -> set[str]:
    """Return the directories in which our tracers put the agent's files."""
    return {
        f"{place}/{name}"
        for place in ("/tmp", "/var/tmp", "/dev/shm", "/run")
        for name in os.listdir(place)
        if name.startswith(f".rbtrace-{MARK}")
    }
