"""The USDT probes of a process, and whether they are traced."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rbtrace_py.errors import BadElf, NotPermitted, RbtraceError
from rbtrace_py.linux.binaries import (
    MappedFile,
    OpenBinary,
    group_files,
    mapped_files,
    open_mapped,
)
from rbtrace_py.linux.closing import Closing
from rbtrace_py.linux.elf import notes as elf_notes
from rbtrace_py.linux.elf.notes import ElfNotes, ImageNote, StapsdtNote, image_signature
from rbtrace_py.linux.elf.operands import parse_operands
from rbtrace_py.linux.elf.reader import Budget, ElfFile, pread
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ruby_probes import PROVIDER, RUBY_PROBES, is_ruby_binary
from rbtrace_py.model.probes import (
    Binary,
    Location,
    Operand,
    OperandType,
    Probe,
    ProbeRole,
    Site,
)

__all__ = [
    "ProbeCache",
    "ProbeState",
    "Problem",
    "Scan",
    "StateReader",
    "find_probes",
    "image_signature",
    "probes_of_file",
    "scan_probes",
]

_MAX_PROBES = 200_000
"""Maximum number of probes per process."""
_LOADED_HOOK = re.compile(r".*/\.rbtrace-[0-9a-f]{16}/agent_hook\.so \(deleted\)")
"""The agent's hook, which `attach` deletes after loading it (agent/keeper.py)."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why probes of a file were not found."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The probes of one process, and the files that could not be read."""

    probes: list[Probe]
    problems: list[Problem]


@dataclass(frozen=True, slots=True)
class ProbeState:
    """The state of a probe: whether it is traced (None: unknown), and its semaphore.

    ``traced`` depends on the instructions in memory; any tracer may have changed them.
    ``semaphore`` is the maximum of its sites' semaphores, or None if there is none or
    memory cannot be read.
    """

    traced: bool | None
    semaphore: int | None


@dataclass(slots=True)
class ProbeCache:
    """Probes by file, so that a second scan reads only new files.

    A file counts as unchanged if its size, its modification time, and the sizes of its
    note sections are unchanged.
    """

    _files: dict[tuple[int, int], tuple[object, list[Probe], list[Problem]]] = field(
        default_factory=dict
    )

    def probes_of(
        self, opened: OpenBinary, budget: Budget
    ) -> tuple[list[Probe], list[Problem]]:
        """Return the probes and problems of an open file; raises BadElf."""
        elf = ElfFile(opened.fd, budget)
        status = os.fstat(opened.fd)
        stamp = (status.st_size, status.st_mtime_ns, elf_notes.signature_of(elf))
        known = self._files.get(opened.binary.key)
        if known is not None and known[0] == stamp:
            return known[1], known[2]
        found = probes_of_file(elf, opened.binary)
        self._files[opened.binary.key] = (stamp, *found)
        return found


def find_probes(process: Process, cache: ProbeCache | None = None) -> list[Probe]:
    """Return the probes of all files that ``process`` executes code from.

    They are sorted by provider and name. A probe in two files is listed twice. Files
    that cannot be read are skipped; ``scan_probes`` reports them.

    Raises:
        NotPermitted, NoSuchTarget: The process's maps cannot be read.
    """
    return scan_probes(process, cache).probes


def scan_probes(process: Process, cache: ProbeCache | None = None) -> Scan:
    """Return the probes of a process, and the files that could not be read."""
    cache = cache if cache is not None else ProbeCache()
    scan = Scan([], [])
    budget = Budget()
    for file in mapped_files(process):
        _scan_file(process, file, cache, budget, scan)
        if len(scan.probes) > _MAX_PROBES:
            del scan.probes[_MAX_PROBES:]
            scan.problems.append(
                Problem(file.binary.path, f"more than {_MAX_PROBES} probes")
            )
            break
    scan.probes.sort(key=lambda probe: (probe.provider, probe.name))
    return scan


def _scan_file(
    process: Process, file: MappedFile, cache: ProbeCache, budget: Budget, scan: Scan
) -> None:
    try:
        with open_mapped(process, file) as opened:
            probes, problems = cache.probes_of(opened, budget)
    except RbtraceError as error:
        if not _LOADED_HOOK.fullmatch(file.binary.path):
            scan.problems.append(Problem(file.binary.path, str(error)))
        return
    scan.probes.extend(probes)
    scan.problems.extend(problems)


def probes_of_file(elf: ElfFile, binary: Binary) -> tuple[list[Probe], list[Problem]]:
    """Return the probes of one file and its problems; raises BadElf."""
    found = elf_notes.read_notes(elf)
    binary = replace(binary, is_image=found.is_image)
    groups: dict[tuple[str, str], list[StapsdtNote]] = {}
    for note in found.sites:
        groups.setdefault((note.provider, note.name), []).append(note)
    probes = [_probe(elf, binary, group, found.images) for group in groups.values()]
    return probes, list(_problems(binary, found))


def _problems(binary: Binary, found: ElfNotes) -> Iterator[Problem]:
    if found.malformed:
        yield Problem(binary.path, f"{found.malformed} malformed notes")
    if found.truncated:
        yield Problem(binary.path, "too many notes")


def _probe(
    elf: ElfFile,
    binary: Binary,
    group: list[StapsdtNote],
    images: dict[int, ImageNote],
) -> Probe:
    sites = _same_length(list(_sites(elf.machine, group)))
    image = next((images[note.pc] for note in group if note.pc in images), None)
    return Probe(
        provider=group[0].provider,
        name=group[0].name,
        binary=binary,
        sites=sites,
        operands=_operands(group[0], binary, sites, image),
        role=image.role if image else ProbeRole.EVENT,
        method=image.method if image else None,
    )


def _sites(machine: int, group: list[StapsdtNote]) -> Iterator[Site]:
    """Yield the sites in file order, one per offset."""
    seen: set[int] = set()
    for note in group:
        if note.offset not in seen:
            seen.add(note.offset)
            yield Site(
                address=note.address,
                offset=note.offset,
                semaphore_offset=note.semaphore_offset,
                locations=parse_operands(note.arguments, machine),
            )


def _same_length(sites: list[Site]) -> tuple[Site, ...]:
    """Pad sites that have fewer operands than others with None."""
    longest = max(len(site.locations) for site in sites)
    if all(len(site.locations) == longest for site in sites):
        return tuple(sites)
    return tuple(
        replace(
            site, locations=site.locations + (None,) * (longest - len(site.locations))
        )
        for site in sites
    )


def _operands(
    note: StapsdtNote, binary: Binary, sites: tuple[Site, ...], image: ImageNote | None
) -> tuple[Operand, ...]:
    """Return an operand per location, with the type and name if known."""
    known: tuple[Operand, ...] = ()
    if image is not None:
        known = image.operands
    elif note.provider == PROVIDER and not binary.is_image:
        known = _ruby_operands(note.name, binary, len(sites[0].locations))
    return tuple(
        _sized(known[place] if place < len(known) else None, place, column)
        for place, column in enumerate(_columns(sites))
    )


def _columns(sites: tuple[Site, ...]) -> Iterator[tuple[Location | None, ...]]:
    return zip(*(site.locations for site in sites), strict=True)


def _ruby_operands(name: str, binary: Binary, count: int) -> tuple[Operand, ...]:
    known = RUBY_PROBES.get(name, ())
    return known if len(known) == count and is_ruby_binary(binary.path) else ()


def _sized(
    known: Operand | None, place: int, column: tuple[Location | None, ...]
) -> Operand:
    """Return the operand with the size and sign of its locations.

    Sites may differ: a constant is often shorter. The widest size is used, and the
    operand is signed if any location is.
    """
    read = [location for location in column if location is not None]
    size = max((location.size for location in read), default=8)
    if known is not None:
        return replace(known, size=size) if known.size != size else known
    return Operand(
        name=f"arg{place}",
        type=_float_type(read),
        signed=any(location.signed for location in read),
        size=size,
    )


def _float_type(read: list[Location]) -> OperandType:
    is_float = any(location.is_float for location in read)
    return OperandType.FLOAT if is_float else OperandType.UNKNOWN


class StateReader(Closing):
    """Reads whether the probes of one process are traced.

    It compares the sites in memory with the file. It keeps descriptors open until it is
    closed. The state of a probe that it cannot read is unknown.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._memory: ProcessMemory | None = ProcessMemory(process.pid, process)
        self._opened: dict[tuple[int, int], OpenBinary | None] = {}
        self._files: dict[tuple[int, int], MappedFile] = {}
        with suppress(RbtraceError):
            self._files = {
                file.binary.key: file for file in group_files(mappings(process))
            }

    def can_read(self) -> bool:
        """Return whether the process's memory can be read."""
        starts = (
            mapping.start
            for file in self._files.values()
            for mapping in file.mappings
            if mapping.is_executable and mapping.perms.startswith("r")
        )
        return self._read(next(starts, None), 1) is not None

    def state(self, probe: Probe) -> ProbeState:
        """Return a probe's current state. Mappings are read only at construction."""
        opened = self._open(probe.binary)
        if opened is None:
            return ProbeState(None, None)
        return ProbeState(
            traced=_any(self._is_patched(opened, site) for site in probe.sites),
            semaphore=self._semaphore(opened, probe),
        )

    def _open(self, binary: Binary) -> OpenBinary | None:
        if binary.key not in self._opened:
            opened = None
            if binary.key in self._files:
                with suppress(RbtraceError):
                    opened = open_mapped(self._process, self._files[binary.key])
                    opened.binary = binary
            self._opened[binary.key] = opened
        return self._opened[binary.key]

    def _is_patched(self, opened: OpenBinary, site: Site) -> bool | None:
        """Return whether a site's code differs from the file's in any mapping."""
        try:
            original = self._original(opened, site)
        except BadElf:
            return None
        found = (
            self._read(mapping.address_of(site.offset), len(original))
            for mapping in opened.mappings
            if mapping.is_executable
        )
        return _any(data != original for data in found if data is not None)

    def _original(self, opened: OpenBinary, site: Site) -> bytes:
        """Return the file's bytes that a tracer may change; raises BadElf."""
        data = pread(opened.fd, 10, site.offset)
        if opened.binary.is_image:
            return data[:_IMAGE_SITE_SIZE]
        return _first_instruction(data)

    def _semaphore(self, opened: OpenBinary, probe: Probe) -> int | None:
        """Return the maximum of the 16-bit counters, in the writable mappings."""
        counts = [
            self._read(mapping.address_of(site.semaphore_offset), 2)
            for site in probe.sites
            if site.semaphore_offset
            for mapping in opened.mappings
            if mapping.is_writable
        ]
        values = [int.from_bytes(data, "little") for data in counts if data]
        return max(values, default=None)

    def _read(self, address: int | None, size: int) -> bytes | None:
        if address is None or self._memory is None:
            return None
        try:
            return self._memory.read(address, size)
        except NotPermitted:
            self._memory = None
            return None
        except RbtraceError:
            return None

    def close(self) -> None:
        """Close all descriptors. Closing twice does nothing."""
        for opened in self._opened.values():
            if opened is not None:
                opened.close()
        self._opened.clear()


def _any(values: Iterable[bool | None]) -> bool | None:
    """Return True if any value is, else None if all are unknown, else False."""
    known = [value for value in values if value is not None]
    return any(known) if known else None


_IMAGE_SITE_SIZE = 8
"""Bytes of a site in the gem's images, which contain only sites."""

_NOPS = (
    (b"\x66\x2e\x0f\x1f\x84\x00\x00\x00\x00\x00", 10),
    (b"\x2e\x66\x0f\x1f\x84\x00\x00\x00\x00\x00", 10),
    (b"\x0f\x1f\x44\x00\x00", 5),
    (b"\x1f\x20\x03\xd5", 4),
)
"""Instructions that the kernel may patch: x86-64's long nops, aarch64's nop."""


def _first_instruction(data: bytes) -> bytes:
    """Return the bytes of a site that a tracer may have changed.

    Newer kernels replace a long nop with a jump or a call, in several steps. Elsewhere
    a breakpoint is one byte, and the next bytes may be another site.
    """
    for nop, size in _NOPS:
        if data.startswith(nop):
            return data[:size]
    return data[:1]
