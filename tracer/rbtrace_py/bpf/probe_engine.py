"""One BPF program, attached to the probes of the targets.

An engine numbers the sites and attaches each file once per process. Its caller chooses
the program and reads the maps that the program writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import SITE
from rbtrace_py.bpf.attach import (
    Attacher,
    Attachment,
    Point,
    RawTracepoint,
)
from rbtrace_py.bpf.compiled_filter import CompiledFilter
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.bpf.program import Program, counters_map
from rbtrace_py.bpf.slots import Slot, pack_site
from rbtrace_py.bpf.tracked_pids import TrackedPids
from rbtrace_py.errors import BpfError, NotPermitted
from rbtrace_py.linux.binaries import open_binary
from rbtrace_py.linux.process import Process, gone
from rbtrace_py.model.counters import Counter
from rbtrace_py.model.probes import Probe, Site

MAX_SITES = 16_384


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """A probe to attach to.

    Attributes:
        probe: The probe.
        series: Number of the series that counts its hits.
        slots: The values that the program reads at a hit.
        role: The probe's end of a pair (``programs/pairs.c``).
    """

    probe: Probe
    series: int
    slots: tuple[Slot, ...]
    role: int = 0


class Engine:
    """A program with its sites, attachments, and counters.

    Attributes:
        program: The loaded program.
        requests: The attached probes; a site's number is an index into this list.
        refused: Reasons why the kernel refused probes.
    """

    def __init__(
        self,
        attacher: Attacher,
        tracked: TrackedPids | None,
        source: str,
        maps: Mapping[str, MapSpec],
        flags: Mapping[str, int],
        numbers: Mapping[str, int],
        filter_: CompiledFilter | None = None,
        shared: Mapping[str, Map] | None = None,
    ) -> None:
        """Compile the program and make its maps, without attaching.

        Args:
            attacher: How to attach.
            tracked: The processes whose hits count. None for one process that has no
                children: the kernel then attaches to that process only.
            source: As for ``Program``, like the following arguments.
            maps: Maps in addition to ``sites`` and ``counters``.
            flags: Numbers for ``-D``.
            numbers: Numbers for AT_LOAD.
            filter_: The filter, if any.
            shared: Maps of another program.

        Raises:
            NotPermitted: The tracer lacks the rights to use BPF.
            BpfError: The program cannot be compiled, or a map cannot be made.
        """
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
            "sites": MapSpec(sys_.MAP_TYPE_ARRAY, 4, SITE.size, MAX_SITES),
            "counters": counters_map(),
        }
        own = {name: spec for name, spec in every.items() if name not in shared}
        numbers = {"WATCH_SET": int(tracked is not None), **numbers}
        prelude = ""
        if filter_ is not None:
            prelude = filter_.prelude()
            own |= filter_.maps()
        self.program = Program(source, {**own, **maps}, flags, numbers, prelude, shared)
        try:
            if filter_ is not None:
                filter_.put_strings(self.program.maps)
        except BaseException:
            self.program.close()
            raise

    def attach(self, process: Process, requests: Sequence[AttachRequest]) -> int:
        """Attach to the new probes among ``requests`` and return their number.

        Raises:
            NoSuchTarget: The process has exited.
            NotPermitted: The tracer lacks the rights to attach.
        """
        fresh: dict[tuple[int, int], list[AttachRequest]] = {}
        for want in requests:
            fresh.setdefault(want.probe.binary.key, []).append(want)
        return sum(self._attach_file(process, group) for group in fresh.values())

    def _attach_file(self, process: Process, group: Sequence[AttachRequest]) -> int:
        binary = group[0].probe.binary
        # Only tracked processes map an image, so it is attached by inode, and children
        # are traced from their first event. Other processes map libraries, too.
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
                # The kernel refuses all sites if it refuses one of them.
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
        """Attach probe by probe and return the attached ones; fill ``refused``."""
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
        """Detach from a process that has exited."""
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
        self.program.maps["sites"].put(number.to_bytes(4, "little"), packed)

    def follow_thread_exits(self) -> None:
        """Run the program's ``on_thread_exit`` when a thread exits."""
        self._tracepoints.append(
            RawTracepoint(self.program, "on_thread_exit", "sched_process_exit")
        )

    def counters(self) -> dict[Counter, int]:
        """Return the program's counters so far."""
        return self.program.counters()

    def missed(self) -> int:
        """Return ``Program.missed``."""
        return self.program.missed()

    def run_time(self) -> tuple[int, int]:
        """Return ``Program.run_time`` of the hits."""
        return self.program.run_time("on_hit")

    def silence(self) -> None:
        """Stop counting at once, because detaching may take a while."""
        for number in range(len(self._sites)):
            self._put_site(number, is_off=True)

    def detach(self) -> None:
        """Detach from every site; the maps keep their contents."""
        for _, attachment in self._attachments:
            attachment.close()
        self._attachments.clear()
        for tracepoint in self._tracepoints:
            tracepoint.close()
        self._tracepoints.clear()

    def close(self) -> None:
        self.detach()
        self.program.close()
