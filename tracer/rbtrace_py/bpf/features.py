"""BPF features of this kernel, found by trying them."""

from __future__ import annotations

import ctypes
import os

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.attach import has_uprobe_multi
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.errors import BpfError, NotPermitted

_RETURN_0 = bytes.fromhex("b7000000000000009500000000000000")


def probe_features() -> dict[str, bool]:
    """Return whether each feature works, by name.

    Raises:
        NotPermitted: The tracer lacks the rights to find out.
    """
    return {
        "BPF programs": _loads(),
        "BPF ring buffer": _has_ring(),
        "BPF tracepoints": _has_raw_tracepoints(),
        "uprobe_multi": has_uprobe_multi(),
    }


def check_rights() -> None:
    """Raise NotPermitted or BpfError unless maps can be made and programs loaded."""
    Map("rights", MapSpec(sys_.MAP_TYPE_ARRAY, 4, 8, 1)).close()
    os.close(sys_.load_program(sys_.PROG_TYPE_KPROBE, _RETURN_0, 0, "rights"))


def _loads() -> bool:
    try:
        os.close(sys_.load_program(sys_.PROG_TYPE_KPROBE, _RETURN_0, 0, "feature"))
    except NotPermitted:
        raise
    except BpfError:
        return False
    return True


def _has_ring() -> bool:
    size = os.sysconf("SC_PAGESIZE")
    try:
        Map("feature", MapSpec(sys_.MAP_TYPE_RINGBUF, 0, 0, size)).close()
    except BpfError:
        return False
    return True


def _has_raw_tracepoints() -> bool:
    """Check sched_process_exit; such tracepoints reveal threads and children."""
    try:
        program = sys_.load_program(
            sys_.PROG_TYPE_RAW_TRACEPOINT, _RETURN_0, 0, "feature"
        )
    except BpfError:
        return False
    try:
        name = ctypes.create_string_buffer(b"sched_process_exit")
        attr = sys_.attributes("QI", sys_.address(name), program)
        link = sys_.raw_bpf(sys_.RAW_TRACEPOINT_OPEN, attr)
        if link >= 0:
            os.close(link)
        return link >= 0
    finally:
        os.close(program)
