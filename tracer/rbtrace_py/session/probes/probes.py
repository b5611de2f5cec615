"""The probes of the targets, and whether they are traced."""

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
    """The probes of all targets.

    Attributes:
        probes: Probes. Equal probes of several processes are one entry, both in a
            shared file and in each process's own images.
        problems: Why the probes of some files are missing.
        missing: Error for the first word without a matching probe.
    """

    probes: list[Listed]
    problems: list[str]
    missing: NoSuchProbe | None = None


def list_probes(targets: Targets, words: Sequence[str] = ()) -> Listing:
    """List the probes of all targets.

    Args:
        targets: The processes.
        words: Names or globs to select probes; if empty, all are listed.

    Raises:
        RbtraceError: A process other than a child that joined is unreadable.
    """
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
            # Two equal probes of one process are two entries.
            key = (*look, seen[look])
            seen[look] += 1
            known = found.get(key, Listed(probe, traced))
            # A known state in one process takes precedence over an unknown one.
            is_traced = known.traced or (known.traced if traced is None else traced)
            found[key] = Listed(known.probe, is_traced, (*known.pids, process.pid))
    listed = list(found.values())
    unknown = (w for w in words if not any(select.matches(w, o.probe) for o in listed))
    first = next(unknown, None)
    missing = None if first is None else select.unknown_probe(first, _all(targets))
    return Listing(listed, list(problems), missing)


def _look(probe: Probe) -> tuple[object, ...]:
    """Return the key by which probes of several processes appear as one."""
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
