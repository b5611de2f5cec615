"""Output of our own program while its terminal shows something else."""

from __future__ import annotations

import os
import sys
import tempfile

from rbtrace_py.linux.closing import Closing

_MOST = 1 << 20
"""Bytes that are kept; a program may write for days."""


class CapturedOutput(Closing):
    """A file in place of a program's standard output and error; ``fd`` is for it."""

    def __init__(self) -> None:
        # Appending, so that the program goes on at the beginning of an emptied file.
        self._file = tempfile.TemporaryFile("ab+")  # noqa: SIM115
        self._is_cut = False

    @property
    def fd(self) -> int:
        return self._file.fileno()

    def bound(self) -> None:
        """Let go of all if it is too much."""
        if os.fstat(self.fd).st_size > _MOST:
            os.ftruncate(self.fd, 0)
            self._is_cut = True

    def tell(self) -> None:
        """Write it where it would have gone, once there is room for it again."""
        self._file.seek(0)
        text = self._file.read(2 * _MOST)
        if self._is_cut:
            sys.stderr.write("rbtrace-py: the beginning of the output was dropped\n")
            sys.stderr.flush()
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
        sys.stdout.flush()

    def close(self) -> None:
        """Forget it; may be called twice."""
        self._file.close()
