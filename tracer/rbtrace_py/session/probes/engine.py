"""One program of the kernel's on the probes of the targets.

An engine knows which site has which number, which file is attached for which
process, and which processes count. What the program records is the business
of whoever made the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.attach import (
    Attacher,
    Attachment,
    Point,
    RawTracepoint,
)
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.program import Program, counters_map
from rbtrace_py.bpf.slots import SITE_SIZE, Slot, pack_site
from rbtrace_py.errors import BpfError, NotPermitted, RbtraceError
from rbtrace_py.linux import btf
from rbtrace_py.linux.binaries import open_binary
from rbtrace_py.linux.process import USE_HOST_PIDS, Process, gone, host_pid_namespace
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.probes import Probe, Site
from rbtrace_py.session.targets.targets import Targets

MAX_SITES = 16_384
_MAX_PROCESSES = 65_536


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """A probe to attach to: its series, its end of a pair, its slots."""

    probe: Probe
    series: int
    slots: tuple[Slot, ...]
    role: int = 0


class TrackedPids:
    """The tracked processes, which the kernel keeps true as they fork."""

    def __init__(self, targets: Targets) -> None:
        if not host_pid_namespace():
            raise BpfError(
                "cannot trace several processes from a container's pid namespace:"
                " the kernel uses other pids",
                f"Name one PID. {USE_HOST_PIDS}",
            )
        self.watched = Map(
            "watched",
            MapSpec(sys_.MAP_TYPE_HASH, 4, 4, _MAX_PROCESSES),
        )
        self._program: Program | None = None
        self._tracepoints: list[RawTracepoint] = []
        for pid in targets.processes:
            self.add(pid)
        if targets.follow:
            self._follow_forks()

    def _follow_forks(self) -> None:
        """Without BTF children are found by looking, a little late."""
        try:
            offsets = btf.Btf.load().offsets(("task_struct.pid", "task_struct.tgid"))
        except RbtraceError:
            return
        pid, tgid = offsets["task_struct.pid"], offsets["task_struct.tgid"]
        if pid is None or tgid is None:
            return
        self._program = Program(
            "tracked_pids.c",
            {"counters": counters_map()},
            {},
            {"PID_OFFSET": pid, "TGID_OFFSET": tgid},
            shared={"watched": self.watched},
        )
        for function, event in (("on_exit", "exit"), ("on_fork", "fork")):
            self._tracepoints.append(
                RawTracepoint(self._program, function, f"sched_process_{event}")
            )

    @property
    def is_immediate(self) -> bool:
        """Does a child count from its first instruction?"""
        return bool(self._tracepoints)

    def add(self, pid: int) -> None:
        self.watched.put(_u32(pid), _u32(0))

    def discard(self, pid: int) -> None:
        self.watched.delete(_u32(pid))

    @property
    def no_room(self) -> int:
        """Children that could not be watched."""
        return self._program.counters()[Counter.NO_ROOM] if self._program else 0

    def pids(self) -> list[int]:
        """Every process that counts now."""
        return [int.from_bytes(key, "little") for key, _ in self.watched.items()]

    def close(self) -> None:
        for tracepoint in self._tracepoints:
            tracepoint.close()
        if self._program is not None:
            self._program.close()
        self.watched.close()


class Engine:
    """See the module.

    source, maps, flags, numbers, prelude, shared: as for ``bpf.program.Program``
    tracked: None when there is one process and there will be no other: then
        the kernel is asked to attach to that one only
    """

    def __init__(
        self,
        attacher: Attacher,
        tracked: TrackedPids | None,
        source: str,
        maps: Mapping[str, MapSpec],
        flags: Mapping[str, int],
        numbers: Mapping[str, int],
        prelude: str = "",
        shared: Mapping[str, Map] | None = None,
    ) -> None:
        self._attacher = attacher
        self._tracked = tracked
        self._numbers: dict[tuple[object, ...], int] = {}
        self._attached: set[tuple[object, ...]] = set()
        self._attachments: list[tuple[int | None, Attachment]] = []
        self.refused: dict[Probe, str] = {}
        self._tracepoints: list[RawTracepoint] = []
        self.requests: list[AttachRequest] = []
        self._sites: list[tuple[AttachRequest, Site]] = []
        shared = dict(shared or {})
        if tracked is not None:
            shared["watched"] = tracked.watched
        every = {
            "sites": MapSpec(sys_.MAP_TYPE_ARRAY, 4, SITE_SIZE, MAX_SITES),
            "counters": counters_map(),
        }
        own = {name: spec for name, spec in every.items() if name not in shared}
        numbers = {"WATCH_SET": int(tracked is not None), **numbers}
        self.program = Program(source, {**own, **maps}, flags, numbers, prelude, shared)

    def attach(self, process: Process, requests: Sequence[AttachRequest]) -> int:
        """Attach to what is new among ``requests``; how many probes that was."""
        fresh: dict[tuple[int, int], list[AttachRequest]] = {}
        for want in requests:
            fresh.setdefault(want.probe.binary.key, []).append(want)
        return sum(self._attach_file(process, group) for group in fresh.values())

    def _attach_file(self, process: Process, group: Sequence[AttachRequest]) -> int:
        binary = group[0].probe.binary
        # An image is mapped by tracked processes only: by inode, so that
        # children are traced from their first event. A library is mapped by
        # others, too, which are left alone.
        pid = None if self._tracked is not None and binary.is_image else process.pid
        fresh = [w for w in group if self._identity(w, pid) not in self._attached]
        if not fresh:
            return 0
        with open_binary(process, binary) as opened:
            try:
                self._attach_points(opened.fd_path, fresh, pid)
            except NotPermitted:
                raise
            except BpfError as error:
                if not process.alive():
                    raise gone(process.pid) from error
                # One site that the kernel refuses must not cost the others.
                fresh = self._attach_singly(opened.fd_path, fresh, pid, error)
        self._attached.update(self._identity(want, pid) for want in fresh)
        return len(fresh)

    def _attach_points(
        self, path: str, requests: Sequence[AttachRequest], pid: int | None
    ) -> None:
        points = [
            self._point(want, site) for want in requests for site in want.probe.sites
        ]
        made = self._attacher.attach(self.program, "on_hit", path, points, pid)
        self._attachments.append((pid, made))

    def _attach_singly(
        self,
        path: str,
        requests: Sequence[AttachRequest],
        pid: int | None,
        error: BpfError,
    ) -> list[AttachRequest]:
        """Probe by probe; those that could be. The others are in ``refused``."""
        if len(requests) == 1:
            self.refused[requests[0].probe] = str(error)
            return []
        done = []
        for want in requests:
            try:
                self._attach_points(path, [want], pid)
                done.append(want)
            except BpfError as refusal:
                self.refused[want.probe] = str(refusal)
        return done

    def forget(self, pid: int) -> None:
        """Let go of what was attached for a process that has ended."""
        for attachment in [made for owner, made in self._attachments if owner == pid]:
            attachment.close()
        self._attachments = [each for each in self._attachments if each[0] != pid]
        self._attached = {known for known in self._attached if known[-1] != pid}

    def _identity(self, want: AttachRequest, pid: int | None) -> tuple[object, ...]:
        probe = want.probe
        return (
            probe.binary.key,
            probe.full_name,
            probe.sites[0].offset,
            want.series,
            want.role,
            pid,
        )

    def _point(self, want: AttachRequest, site: Site) -> Point:
        # Several names may share a site.
        probe = want.probe
        key = (probe.binary.key, probe.full_name, site.offset, want.series, want.role)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._numbers)
            if number >= MAX_SITES:
                raise BpfError(
                    f"more than {MAX_SITES} probe sites at once",
                    "Select fewer probes",
                )
            self._numbers[key] = number
            self.requests.append(want)
            self._sites.append((want, site))
            self._put_site(number)
        return Point(site.offset, site.semaphore_offset, number)

    def _put_site(self, number: int, is_off: bool = False) -> None:
        want, site = self._sites[number]
        packed = pack_site(site, want.series, want.slots, want.role, is_off)
        self.program.maps["sites"].put(_u32(number), packed)

    def follow_thread_exits(self) -> None:
        self._tracepoints.append(
            RawTracepoint(self.program, "on_thread_exit", "sched_process_exit")
        )

    def counters(self) -> dict[Counter, int]:
        return self.program.counters()

    def missed(self) -> int:
        return self.program.missed()

    def run_time(self) -> tuple[int, int]:
        """Hits, and the nanoseconds of their programs, while that was measured."""
        return self.program.run_time("on_hit")

    def silence(self) -> None:
        """Count no more, at once: detaching may take the kernel a while."""
        for number in range(len(self._sites)):
            self._put_site(number, is_off=True)

    def detach(self) -> None:
        """Take the program off every site; what it recorded stays."""
        for _, attachment in self._attachments:
            attachment.close()
        self._attachments.clear()
        for tracepoint in self._tracepoints:
            tracepoint.close()
        self._tracepoints.clear()

    def close(self) -> None:
        self.detach()
        self.program.close()


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")
