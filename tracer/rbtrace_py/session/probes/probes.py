"""The probes of the targets, and whether somebody traces them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rbtrace_py.errors import NoSuchProbe, RbtraceError
from rbtrace_py.linux.probes import StateReader, scan_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.model.listed_probes import Listed
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.probes import select
from rbtrace_py.session.targets.notes import skipped
from rbtrace_py.session.targets.targets import Targets


@dataclass(frozen=True, slots=True)
class Listing:
    """probes: equal ones of several processes once, as of a file that they share
        or of the images that each has of its own

    problems: why some files' probes are not among them
    missing: the error for the first word that means nothing
    """

    probes: list[Listed]
    problems: list[str]
    missing: NoSuchProbe | None = None


def list_probes(targets: Targets, words: Sequence[str] = ()) -> Listing:
    """Look into every target; words: names or globs to choose by."""
    found: dict[tuple[object, ...], Listed] = {}
    problems: dict[str, None] = {}
    for process in targets.processes.values():
        try:
            scan = scan_probes(process, targets.probes)
        except RbtraceError as error:
            if not targets.has_joined(process):
                raise
            problems[skipped(process.pid, error)] = None
            continue
        problems.update((f"{p.path}: {p.text}", None) for p in scan.problems)
        seen: Counter[tuple[object, ...]] = Counter()
        for probe, traced in _states(process, _chosen(scan.probes, words)):
            look = _look(probe)
            # Two in one process that look alike are two.
            key = (*look, seen[look])
            seen[look] += 1
            known = found.get(key, Listed(probe, traced))
            # A known answer of one process takes precedence over another's silence.
            is_traced = known.traced or (known.traced if traced is None else traced)
            found[key] = Listed(known.probe, is_traced, (*known.pids, process.pid))
    listed = list(found.values())
    unknown = (w for w in words if not any(select.matches(w, o.probe) for o in listed))
    first = next(unknown, None)
    missing = None if first is None else select.unknown_probe(first, _all(targets))
    return Listing(listed, list(problems), missing)


def _look(probe: Probe) -> tuple[object, ...]:
    """By which probes of several processes are one to a person."""
    return (
        probe.full_name,
        probe.binary.path,
        probe.operands,
        probe.role,
        probe.method,
        len(probe.sites),
    )


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


def _all(targets: Targets) -> list[Probe]:
    scans = [scan_probes(p, targets.probes) for p in targets.chosen()]
    return [probe for scan in scans for probe in scan.probes]
