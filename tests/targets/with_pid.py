"""Run a program under the pid that another process has just given up.

Arguments: the pid, and the command. The kernel takes the pid from ``set_tid`` of clone3
(Linux 5.5, CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys

CLONE3 = 435


def main(pid: int, *command: str) -> None:
    wanted = ctypes.c_int(pid)
    # struct clone_args: set_tid is the ninth of its 11 fields, then its length.
    fields = [0] * 11
    fields[4] = signal.SIGCHLD
    fields[8:10] = ctypes.addressof(wanted), 1
    arguments = struct.pack("=11Q", *fields)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    while True:
        child = syscall(CLONE3, arguments, ctypes.c_size_t(len(arguments)))
        if child == 0:
            os.execvp(command[0], command)
        if child > 0:
            break
        # The kernel frees a pid a moment after its process was reaped.
        assert ctypes.get_errno() == errno.EEXIST, os.strerror(ctypes.get_errno())
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
