"""Hints on why a process may lack the probe that was named, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rbtrace_py.errors import NoSuchProbe, RbtraceError
from rbtrace_py.linux.binaries import mapped_files
from rbtrace_py.linux.probes import scan_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ruby_probes import PROVIDER, is_ruby_binary

_EXTENSION = "native.so"
_GEM = "tracepoint"
_COMMAND_PID = re.compile(r"(`rbtrace-py \S+) PID\b")


def explain(error: NoSuchProbe, processes: Iterable[Process]) -> None:
    """Add to the error's hint what is the matter with the first of the processes
    in which the gem has no probes, unless one of Ruby's own was meant or some
    other process has them. Commands in the hint get the processes' PIDs.
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


def without_gem(process: Process) -> str:
    """Return a hint for a process without probes of the gem; empty if it has some."""
    try:
        scan = scan_probes(process)
        if any(probe.binary.is_image for probe in scan.probes):
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
            "Run as root, or with CAP_DAC_READ_SEARCH and CAP_CHECKPOINT_RESTORE: its"
            f" probes may be where nobody could look: {scan.problems[0].text}"
        )
    return (
        "Define a probe (see `Tracepoint.define`), or wait for one with --wait:"
        f" {who} has loaded the gem, but has not defined one yet"
    )


def _is_extension(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name == _EXTENSION and _GEM in folder
