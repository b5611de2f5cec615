"""The kernel's statistics of the run time of BPF programs."""

from __future__ import annotations

import os

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.linux.closing import Closing

_RUN_TIME = 0
"""BPF_STATS_RUN_TIME of ``enum bpf_stats_type``."""


class RunStatistics(Closing):
    """Makes the kernel measure each run of each BPF program while it is open.

    ``is_on`` is False if the kernel refuses: before Linux 5.8 or without CAP_SYS_ADMIN.
    """

    def __init__(self) -> None:
        self._fd = sys_.raw_bpf(sys_.ENABLE_STATS, sys_.attributes("I", _RUN_TIME))

    @property
    def is_on(self) -> bool:
        return self._fd >= 0

    def close(self) -> None:
        if self.is_on:
            os.close(self._fd)
            self._fd = -1
