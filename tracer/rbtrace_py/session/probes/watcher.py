"""Detection of new probes in a process, at the cost of a few reads."""

from __future__ import annotations

from collections.abc import Sequence

from rbtrace_py.errors import RbtraceError
from rbtrace_py.linux.binaries import OpenBinary, open_binary
from rbtrace_py.linux.maps import executable_signature
from rbtrace_py.linux.probes import image_signature
from rbtrace_py.linux.process import Process
from rbtrace_py.model.probes import Probe


class Watcher:
    """The state of each process when its probes were last read.

    New files appear in the process's mappings. A new probe in an image of the gem
    changes the size of the image's notes, so images are held open.
    """

    def __init__(self) -> None:
        self._maps: dict[int, int] = {}
        self._images: dict[int, list[tuple[OpenBinary, object]]] = {}
        self._programs: dict[int, bytes] = {}

    def has_changed(self, process: Process) -> bool:
        """Return whether it changed since ``learn``; False if it is unreadable."""
        try:
            if self._maps.get(process.pid) != executable_signature(process):
                return True
            return any(
                image_signature(image.fd) != signature
                for image, signature in self._images.get(process.pid, ())
            )
        except (RbtraceError, OSError):
            return False

    def has_executed(self, process: Process) -> bool:
        """Return whether it runs another program than at the first call."""
        program = process.program
        return bool(program) and (
            self._programs.setdefault(process.pid, program) != program
        )

    def learn(self, process: Process, probes: Sequence[Probe]) -> None:
        """Store the state of a process; read its probes again after this."""
        self.forget(process.pid)
        images = {p.binary.key: p.binary for p in probes if p.binary.is_image}
        try:
            self._maps[process.pid] = executable_signature(process)
            held = self._images.setdefault(process.pid, [])
            for binary in images.values():
                image = open_binary(process, binary)
                held.append((image, image_signature(image.fd)))
        except (RbtraceError, OSError):
            self.forget(process.pid)

    def forget(self, pid: int) -> None:
        self._maps.pop(pid, None)
        for image, _ in self._images.pop(pid, ()):
            image.close()

    def close(self) -> None:
        for pid in list(self._images):
            self.forget(pid)
