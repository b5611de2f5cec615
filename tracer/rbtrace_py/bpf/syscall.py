"""The bpf(2) and perf_event_open(2) system calls, as far as the tracer uses them.

Attributes are packed by hand, as in ``include/uapi/linux/bpf.h``. All these layouts are
stable interfaces of the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from rbtrace_py.errors import BpfError, NotPermitted, TooManyFiles
from rbtrace_py.linux import locked_memory
from rbtrace_py.linux.kernel import has_seccomp_filter, missing_for_bpf

MAP_CREATE = 0
MAP_LOOKUP_ELEM = 1
MAP_UPDATE_ELEM = 2
MAP_DELETE_ELEM = 3
PROG_LOAD = 5
OBJ_GET_INFO_BY_FD = 15
RAW_TRACEPOINT_OPEN = 17
MAP_LOOKUP_BATCH = 24
LINK_CREATE = 28
ENABLE_STATS = 32

MAP_TYPE_HASH = 1
MAP_TYPE_ARRAY = 2
MAP_TYPE_LRU_HASH = 9
MAP_TYPE_RINGBUF = 27

PROG_TYPE_KPROBE = 2
PROG_TYPE_TRACEPOINT = 5
PROG_TYPE_PERF_EVENT = 7
PROG_TYPE_RAW_TRACEPOINT = 17

ATTACH_TRACE_UPROBE_MULTI = 48
"""BPF_TRACE_UPROBE_MULTI, Linux 6.6."""

_LOG_STATS = 4
"""Log level: the error and statistics. With all instructions, the log would be too
long, and Linux before 6.4 would cut off its end."""
F_NO_PREALLOC = 1
F_MMAPABLE = 1 << 10

_NUMBERS = {
    "x86_64": {"bpf": 321, "perf_event_open": 298},
    "aarch64": {"bpf": 280, "perf_event_open": 241},
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _number(name: str) -> int:
    machine = platform.machine()
    try:
        return _NUMBERS[machine][name]
    except KeyError:
        raise BpfError(f"tracing is not supported on {machine}") from None


def raw_bpf(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    """Call bpf(2); return the result, or the negative error number."""
    for _ in range(2):
        result = _libc.syscall(
            _number("bpf"), command, attributes, ctypes.sizeof(attributes)
        )
        if result >= 0:
            return int(result)
        error = ctypes.get_errno()
        # Before Linux 5.11, EPERM may also mean the limit of locked memory.
        if error != errno.EPERM or not locked_memory.raise_limit():
            break
    return -error


def bpf(command: int, attributes: ctypes.Array[ctypes.c_char], doing: str) -> int:
    """Call bpf(2) and return the result.

    Args:
        command: Command of bpf(2).
        attributes: Its attributes.
        doing: Completes "cannot …" in the error.

    Raises:
        NotPermitted: The tracer lacks the rights.
        BpfError: The call failed.
    """
    result = raw_bpf(command, attributes)
    if result < 0:
        raise refused(-result, doing)
    return result


def refused(error: int, doing: str, log: str = "") -> BpfError | NotPermitted:
    """Return the exception for an error number of the kernel."""
    if error == errno.EMFILE:
        limit = TooManyFiles(f"cannot {doing}")
        return BpfError(str(limit), limit.hint)
    text = f"cannot {doing}: {os.strerror(error)}"
    if error in (errno.EPERM, errno.EACCES) and not log:
        missing = missing_for_bpf()
        if has_seccomp_filter() and not missing:
            return NotPermitted(
                f"{text}. The capabilities suffice, so the seccomp filter of this"
                " container forbids it",
                "Use a filter that allows bpf and perf_event_open, or --security-opt"
                " seccomp=unconfined. Podman 4's default filter allows bpf only with"
                " CAP_SYS_ADMIN",
            )
        with_them = f", or with {missing}" if missing else ""
        return NotPermitted(
            text,
            f"Run as root (sudo){with_them}; `rbtrace-py doctor` shows what is missing",
            root_helps=True,
        )
    return BpfError(text, log or "`rbtrace-py doctor` shows what this kernel has")


def attributes(layout: str, *values: int) -> ctypes.Array[ctypes.c_char]:
    """Return a zero-padded ``union bpf_attr`` (with its size in Linux 6.6)."""
    packed = struct.pack("=" + layout, *values)
    return ctypes.create_string_buffer(packed, max(len(packed), 152))


def address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def load_program(
    program_type: int, instructions: bytes, attach_type: int, name: str
) -> int:
    """Load a program (BPF_PROG_LOAD) and return its descriptor.

    Args:
        program_type: Type of the program.
        instructions: Its instructions, 8 bytes each.
        attach_type: Its expected attach type.
        name: Its name, of which the kernel keeps 15 bytes.

    Raises:
        NotPermitted: The tracer lacks the rights.
        BpfError: The kernel rejected the program; the hint is the end of the
            verifier's log.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"Dual MIT/GPL")

    def attempt(log: ctypes.Array[ctypes.c_char] | None) -> int:
        attr = attributes(
            "IIQQIIQII16sII",
            program_type,
            len(instructions) // 8,
            address(code),
            address(licence),
            _LOG_STATS if log is not None else 0,
            ctypes.sizeof(log) if log is not None else 0,
            address(log) if log is not None else 0,
            0,
            0,
            name.encode()[:15],  # type: ignore[arg-type]
            0,
            attach_type,
        )
        return raw_bpf(PROG_LOAD, attr)

    result = attempt(None)
    if result >= 0:
        return result
    if result in (-errno.EPERM,):
        raise refused(-result, f"load the BPF program {name}")
    log = ctypes.create_string_buffer(1 << 16)
    again = attempt(log)
    if again >= 0:
        return again
    lines = log.value.decode(errors="replace").strip().splitlines()
    raise refused(
        -result,
        f"load the BPF program {name}",
        "\n".join(["the verifier said:", *lines[-12:]]),
    )


def perf_event_open(
    attr: ctypes.Array[ctypes.c_char], pid: int, cpu: int, group: int, flags: int
) -> int:
    """Call perf_event_open(2); return the descriptor, or the negative error number."""
    result = _libc.syscall(
        _number("perf_event_open"), attr, pid, cpu, group, ctypes.c_ulong(flags)
    )
    return int(result) if result >= 0 else -ctypes.get_errno()
