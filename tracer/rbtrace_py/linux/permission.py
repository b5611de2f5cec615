"""Explanations why the kernel denies access to a process.

The kernel returns only EPERM. ``__ptrace_may_access`` (kernel/ptrace.c) checks in this
order: are all user and group IDs of the process ours, or do we have CAP_SYS_PTRACE in
its user namespace; is it dumpable; do we have all its capabilities; do the security
modules, such as Yama, agree. This module repeats the checks with data from ``/proc``.
"""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import NotPermitted
from rbtrace_py.linux.kernel import effective_capabilities
from rbtrace_py.linux.procfs import read_int, read_text

_AS_ROOT = "Run as root, or with CAP_SYS_PTRACE"
_FIRST_USER_NAMESPACE = 0xEFFFFFFD
"""Inode of the initial user namespace: PROC_USER_INIT_INO (include/linux/proc_ns.h)."""
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_NOBODY = 3
"""The Yama scope that denies everyone, including root."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a process; None and empty if they are hidden.

    Attributes:
        ids: Real, effective, and saved user IDs, then the same group IDs.
        capabilities: Permitted capabilities as a bit mask.
    """

    ids: tuple[int, ...]
    capabilities: int
    user_namespace: int | None
    is_dumpable: bool


def explain_denied(pid: int, what: str = "the memory") -> NotPermitted:
    """Return the error for ``what`` of a process that we may not read, with the reason.

    If the process has ended, the reason may be wrong, but nothing is raised.
    """
    scope = read_int(_YAMA) or 0
    reason, hint = _why(pid, scope, is_file=what != "the memory")
    message = f"not allowed to read {what} of process {pid}"
    return NotPermitted(
        f"{message}: {reason}" if reason else message,
        hint,
        root_helps=scope < _NOBODY and os.geteuid() != 0,
    )


def _why(pid: int, scope: int, is_file: bool) -> tuple[str, str]:
    """Return the reason and a hint. A ``/proc`` file (``is_file``) has an owner too."""
    own, its = credentials(os.getpid()), credentials(pid)
    if scope >= _NOBODY:
        return (
            "Yama forbids it for everyone (kernel.yama.ptrace_scope = 3)",
            "Reboot to change that",
        )
    capabilities = effective_capabilities()
    if "CAP_SYS_PTRACE" in capabilities:
        is_ours = its.ids[1:2] == own.ids[1:2] or "CAP_DAC_OVERRIDE" in capabilities
        if is_file and not is_ours:
            return (
                "it is another user's, and CAP_DAC_OVERRIDE is missing",
                "Run as root, or with it as well",
            )
        return _why_with_capability(own)
    if os.geteuid() == 0:
        return (
            "this root lacks CAP_SYS_PTRACE",
            "Add it to the container: docker run --cap-add SYS_PTRACE",
        )
    return _why_without(own, its, scope)


def _why_with_capability(own: Credentials) -> tuple[str, str]:
    """Explain a denial despite CAP_SYS_PTRACE, which covers our user namespace."""
    if own.user_namespace != _FIRST_USER_NAMESPACE:
        return (
            "it may be outside this user namespace, where CAP_SYS_PTRACE has no effect",
            "Run on the host, or in the container of the process",
        )
    return "a security module or a sandbox (seccomp) forbids it", "See dmesg"


def _why_without(own: Credentials, its: Credentials, scope: int) -> tuple[str, str]:
    if len(set(its.ids[:3])) > 1 or len(set(its.ids[3:])) > 1:
        return "it has changed its user or group ids", _AS_ROOT
    if its.ids and its.ids[0] != own.ids[0]:
        user = _name(its.ids[0])
        hint = f"Run as {user}, as root, or with CAP_SYS_PTRACE"
        return f"it belongs to user {user}", hint if its.ids[0] else _AS_ROOT
    if its.ids and its.ids[3:] != own.ids[3:]:
        return "its group is not yours", _AS_ROOT
    if not its.is_dumpable:
        return (
            "it is not dumpable (it was set-uid, or called PR_SET_DUMPABLE)",
            _AS_ROOT,
        )
    if its.capabilities & ~own.capabilities:
        return "it has capabilities that you lack", _AS_ROOT
    if scope == 2:
        return (
            "Yama forbids it without CAP_SYS_PTRACE (kernel.yama.ptrace_scope = 2)",
            _AS_ROOT,
        )
    if scope == 1:
        return (
            "Yama allows it only for child processes (kernel.yama.ptrace_scope = 1)",
            f"{_AS_ROOT}; or start the program with `-- COMMAND`; or run sysctl"
            " kernel.yama.ptrace_scope=0",
        )
    return "a security module or a sandbox (seccomp) forbids it", _AS_ROOT


def credentials(pid: int) -> Credentials:
    """Read a process's credentials; they are empty if it has ended or is hidden."""
    status = read_text(f"/proc/{pid}/status") or ""
    return Credentials(
        ids=_ids(status, "Uid") + _ids(status, "Gid"),
        capabilities=_permitted(status),
        user_namespace=_user_namespace(pid),
        is_dumpable=_is_dumpable(pid, _ids(status, "Uid")),
    )


def _ids(status: str, name: str) -> tuple[int, ...]:
    match = re.search(rf"^{name}:\s*(\d+)\s+(\d+)\s+(\d+)", status, re.MULTILINE)
    return tuple(map(int, match.groups())) if match else ()


def _permitted(status: str) -> int:
    match = re.search(r"^CapPrm:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    return int(match[1], 16) if match else 0


def _user_namespace(pid: int) -> int | None:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/user").st_ino
    return None


def _is_dumpable(pid: int, uids: tuple[int, ...]) -> bool:
    """Return whether it is dumpable. If not, root owns its files (task_dump_owner)."""
    with suppress(OSError):
        return not uids or os.stat(f"/proc/{pid}/environ").st_uid == uids[1]
    return True


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
