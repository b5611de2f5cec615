"""The probes of the targets, and whether somebody traces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.probes import ProbeCache, StateReader, scan_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.model import Probe
from rbtrace_py.session import select
from rbtrace_py.session.targets import Targets


@dataclass(frozen=True, slots=True)
class Listing:
    """probes: with their state (None: could not be read), a file's once

    problems: why some files' probes are not among them
    """

    probes: list[tuple[Probe, bool | None]]
    problems: list[str]


def list_probes(targets: Targets, words: Sequence[str] = ()) -> Listing:
    """Look into every target; of several the first that knows a state tells.

    words: names or globs to choose by; raises NoSuchProbe for one that means
    nothing.
    """
    cache = ProbeCache()
    found: dict[tuple[object, ...], tuple[Probe, bool | None]] = {}
    problems: dict[str, None] = {}
    for process in targets.processes.values():
        scan = scan_probes(process, cache)
        problems.update((f"{p.path}: {p.text}", None) for p in scan.problems)
        for probe, traced in _states(process, _chosen(scan.probes, words)):
            key = (probe.binary.key, probe.full_name)
            if key not in found or (traced and not found[key][1]):
                found[key] = (probe, traced)
    for word in words:
        if not any(select.matches(word, probe) for probe, _ in found.values()):
            raise select.unknown_probe(word, _all(targets, cache))
    return Listing(list(found.values()), list(problems))


def _chosen(probes: Sequence[Probe], words: Sequence[str]) -> list[Probe]:
    if not words:
        return list(probes)
    return [p for p in probes if any(select.matches(word, p) for word in words)]


def _states(
    process: Process, probes: Sequence[Probe]
) -> list[tuple[Probe, bool | None]]:
    try:
        with StateReader(process) as reader:
            return [(probe, reader.state(probe).traced) for probe in probes]
    except RbtraceError:
        return [(probe, None) for probe in probes]


def _all(targets: Targets, cache: ProbeCache) -> list[Probe]:
    scans = [scan_probes(p, cache) for p in targets.processes.values()]
    return [probe for scan in scans for probe in scan.probes]
