"""The proof that we may read the memory of the agent's process.

The agent sends the address of a fresh text in its memory. We answer with a value that
only a reader of the text can compute, and that is valid only for our process. Opening
``/proc/PID/mem`` needs the permission to attach (ptrace(2), PTRACE_MODE_ATTACH). See
docs/agent/access.md, "The proof".
"""

from __future__ import annotations

import os
import re

from rbtrace_py.agent.protocol import MalformedAnswer
from rbtrace_py.errors import NotPermitted
from rbtrace_py.linux.permission import explain_denied
from rbtrace_py.linux.process import Process, gone

_SIZE = 4096
_MARK_SIZE = len("rbtrace-proof-1:")
_DIGITS = 30
"""Digits of a coefficient."""
_PRIME = 2**127 - 1
_TEXT = re.compile(rb"rbtrace-proof-1:[0-9a-f]{4080}")
"""The text. Other memory is never revealed: the listener on the socket need not be the
process any more, and could send an address of secrets."""


def prove(process: Process, address: object) -> str | None:
    """Return our answer to the text at ``address``; None if we may not read it."""
    text = _read_text(process, address)
    return None if text is None else answer(text, pid_seen_by(process))


def pid_seen_by(process: Process) -> int:
    """Return our pid in the process's pid namespace; 0 if we are outside."""
    return 0 if "pid" in process.foreign_namespaces() else os.getpid()


def answer(text: bytes, pid: int) -> str:
    """Evaluate at ``pid`` the polynomial whose coefficients are the text's digits.

    A process that relays the answer learns nothing about the value for its own pid.
    """
    value = 0
    for start in range(_MARK_SIZE, _SIZE, _DIGITS):
        value = (value * pid + int(text[start : start + _DIGITS], 16)) % _PRIME
    return f"{value:032x}"


def _read_text(process: Process, address: object) -> bytes | None:
    """Return the text at ``address``; None if we may not read it or there is none.

    Raises:
        MalformedAnswer: The memory does not contain such a text.
        NoSuchTarget: The process has ended.
    """
    if address is None:
        return None
    try:
        fd = process.open("mem", os.O_RDONLY)
    except NotPermitted:
        return None
    try:
        text = os.pread(fd, _SIZE, address) if isinstance(address, int) else b""
    except PermissionError:
        return None
    except (OSError, OverflowError):
        text = b""
    finally:
        os.close(fd)
    if not _TEXT.fullmatch(text):
        if process.is_ending():
            raise gone(process.pid)
        raise MalformedAnswer("an address without proof")
    return text


def denied(process: Process, has_proved: bool) -> NotPermitted:
    """Return the error for an agent that denied access."""
    if has_proved:
        return NotPermitted(
            f"another process relays messages to the agent in {process.pid}",
            "Find that process of the same user, and remove its socket",
        )
    reason = explain_denied(process.pid)
    return NotPermitted(
        f"the agent only answers users who may read its process's memory: {reason}",
        f"{reason.hint}; or have its owner start the program with"
        " TRACEPOINT_AGENT=observe, trace or eval",
        root_helps=reason.root_helps,
    )
