"""Output of our own program while its terminal shows something else."""

from __future__ import annotations

import os
import sys
import tempfile

from rbtrace_py.linux.closing import Closing

_MOST = 1 << 20
"""Maximum number of buffered bytes, as a program may write for days."""


class CapturedOutput(Closing):
    """File that replaces a program's standard output and error; pass it ``fd``."""

    def __init__(self) -> None:
        # In append mode, the program continues at the start of a truncated file.
        self._file = tempfile.TemporaryFile("ab+")  # noqa: SIM115
        self._is_cut = False

    @property
    def fd(self) -> int:
        return self._file.fileno()

    def bound(self) -> None:
        """Discard the captured output if it is too long."""
        if os.fstat(self.fd).st_size > _MOST:
            os.ftruncate(self.fd, 0)
            self._is_cut = True

    def tell(self) -> None:
        """Write the captured output to standard output."""
        self._file.seek(0)
        text = self._file.read(2 * _MOST)
        if self._is_cut:
            sys.stderr.write("rbtrace-py: the beginning of the output was dropped\n")
            sys.stderr.flush()
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
        sys.stdout.flush()

    def close(self) -> None:
        """Discard the captured output. A second call does nothing."""
        self._file.close()
