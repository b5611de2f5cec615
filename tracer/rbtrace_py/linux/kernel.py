"""Capabilities and settings of this kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rbtrace_py.linux.procfs import read_int, read_text

_CAPABILITIES = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
"""Numbers of include/uapi/linux/capability.h."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Settings of this kernel; None where it lacks or hides the setting.

    Attributes:
        yama: ``kernel.yama.ptrace_scope``.
        lockdown: none, integrity, or confidentiality.
        tracefs: Mount point of tracefs.
    """

    release: str
    version: tuple[int, int]
    machine: str
    perf_event_paranoid: int | None
    yama: int | None
    lockdown: str | None
    tracefs: str | None


def read_kernel() -> Kernel:
    """Read the kernel's settings."""
    name = os.uname()
    return Kernel(
        release=name.release,
        version=parse_version(name.release),
        machine=name.machine,
        perf_event_paranoid=read_int("/proc/sys/kernel/perf_event_paranoid"),
        yama=read_int("/proc/sys/kernel/yama/ptrace_scope"),
        lockdown=_lockdown(),
        tracefs=tracefs(),
    )


def parse_version(release: str) -> tuple[int, int]:
    """Parse ``6.18.44-custom`` as (6, 18); return (0, 0) if that fails."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _lockdown() -> str | None:
    text = read_text("/sys/kernel/security/lockdown")
    match = re.search(r"\[(\w+)\]", text or "")
    return match[1] if match else None


def tracefs() -> str | None:
    """Return the mount point of tracefs, even if we may not enter it, or None."""
    for line in (read_text("/proc/self/mounts", 1 << 22) or "").split("\n"):
        fields = line.split(" ")
        if len(fields) > 2 and fields[2] == "tracefs":
            return fields[1]
    return None


def effective_capabilities() -> frozenset[str]:
    """Return the names of our capabilities, limited to those that tracing uses.

    CAP_SYS_ADMIN implies the capabilities that were split from it.
    """
    text = read_text("/proc/self/status") or ""
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", text, re.MULTILINE)
    mask = int(match[1], 16) if match else 0
    found = {name for name, bit in _CAPABILITIES.items() if mask >> bit & 1}
    if "CAP_SYS_ADMIN" in found:
        found |= {"CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE"}
    return frozenset(found)


def has_seccomp_filter() -> bool:
    """Return whether this process has a seccomp filter, as in most containers."""
    return "\nSeccomp:\t2\n" in (read_text("/proc/self/status") or "")


def missing_for_bpf(capabilities: frozenset[str] | None = None) -> str:
    """Name the capabilities that we lack for BPF; see ``missing_of``."""
    return missing_of({"CAP_BPF", "CAP_PERFMON"}, capabilities)


def missing_of(
    wanted: AbstractSet[str], capabilities: frozenset[str] | None = None
) -> str:
    """Return the names of missing capabilities, joined by "and"; may be empty.

    Args:
        wanted: The required capabilities.
        capabilities: The available capabilities; by default our effective ones.
    """
    if capabilities is None:
        capabilities = effective_capabilities()
    return " and ".join(sorted(wanted - capabilities))
