"""Hints about missing probes: the cause and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rbtrace_py.errors import NoSuchProbe, RbtraceError
from rbtrace_py.linux.binaries import mapped_files
from rbtrace_py.linux.probes import Scan, scan_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ruby_probes import PROVIDER, is_ruby_binary
from rbtrace_py.model.probes import Probe
from rbtrace_py.session.probes.select import AGENT_PROVIDER

_EXTENSION = "native.so"
_GEM = "tracepoint"
_COMMAND_PID = re.compile(r"(`rbtrace-py \S+) PID\b")


def explain(error: NoSuchProbe, processes: Iterable[Process]) -> None:
    """Extend the error's hint.

    Explain why the first process lacks the gem's probes, unless the word names a probe
    of Ruby itself or another process has such probes. In commands, replace PID by the
    PIDs of ``processes``.
    """
    processes = list(processes)
    if processes and all(process.alive() for process in processes):
        pids = ",".join(str(process.pid) for process in processes)
        error.hint = _COMMAND_PID.sub(rf"\g<1> {pids}", error.hint)
    if error.word.rpartition(":")[0] == PROVIDER:
        return
    hints = [without_gem(process) for process in processes]
    if hints and all(hints):
        error.hint = "\n".join(filter(None, (hints[0], error.hint)))


def is_of_gem(probe: Probe) -> bool:
    """Return whether a program defined the probe with the gem."""
    return probe.binary.is_image and probe.provider != AGENT_PROVIDER


def without_gem(process: Process, scan: Scan | None = None) -> str:
    """Return a hint for a process without probes of the gem; empty if it has some."""
    try:
        scan = scan or scan_probes(process)
        if any(map(is_of_gem, scan.probes)):
            return ""
        paths = [file.binary.path for file in mapped_files(process)]
        who = f"process {process.pid} ({process.comm})"
    except (RbtraceError, OSError):
        return ""
    if not any(map(is_ruby_binary, paths)):
        return f"Name a Ruby process: {who} is not Ruby, as no interpreter is mapped"
    if not any(map(_is_extension, paths)):
        return (
            "Add tracepoint-usdt to its Gemfile, define a probe (`require"
            f' "tracepoint"`) and restart it: {who} is Ruby, but has not loaded the gem'
        )
    if scan.problems:
        return (
            f"Run as root: {who} has loaded the gem, but its probes may be in a file"
            f" that cannot be read: {scan.problems[0].text}"
        )
    return (
        "Define a probe (see `Tracepoint.define`), or wait for one with --wait:"
        f" {who} has loaded the gem, but has not defined one yet"
    )


def _is_extension(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name == _EXTENSION and _GEM in folder
