"""Hand-made core files, for every kind of wrong content."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from elfmaker import note

NT_FILE = 0x46494C45


def thread_note(tid: int, signal: int = 0, rip: int = 0, fs_base: int = 0) -> bytes:
    """``NT_PRSTATUS`` of x86-64."""
    registers = [0] * 27
    registers[16], registers[21] = rip, fs_base
    head = struct.pack("<i", signal).ljust(32, b"\0") + struct.pack("<i", tid)
    body = head.ljust(112, b"\0") + struct.pack("<27Q", *registers)
    return note(b"CORE", 1, body.ljust(336, b"\0"))


def program_note(pid: int, comm: bytes, command: bytes) -> bytes:
    """``NT_PRPSINFO``."""
    body = struct.pack("<4x4xQIIIIII16s80s", 0, 0, 0, pid, 1, 1, 1, comm, command)
    return note(b"CORE", 3, body)


def files_note(
    files: list[tuple[int, int, int, bytes]], count: int | None = None
) -> bytes:
    """Return an ``NT_FILE`` note of (start, end, offset in pages, path)."""
    body = struct.pack("<QQ", len(files) if count is None else count, 4096)
    body += b"".join(struct.pack("<QQQ", *file[:3]) for file in files)
    body += b"".join(file[3] + b"\0" for file in files)
    return note(b"CORE", NT_FILE, body)


@dataclass
class Core:
    """``loads`` of (address, bytes, size in memory, flags)."""

    notes: bytes = b""
    loads: list[tuple[int, bytes, int, int]] = field(default_factory=list)
    kind: int = 4

    def build(self) -> bytes:
        count = 1 + len(self.loads)
        at = 64 + 56 * count
        rows = [(4, 4, at, 0, len(self.notes), 0)]
        body = self.notes
        for address, data, size, flags in self.loads:
            rows.append((1, flags, at + len(body), address, len(data), size))
            body += data
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        head = ident + struct.pack(
            "<HHIQQQIHHHHHH", self.kind, 62, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0
        )
        headers = [
            struct.pack("<IIQQQQQQ", kind, flags, offset, at_, at_, size, memory, 1)
            for kind, flags, offset, at_, size, memory in rows
        ]
        return head + b"".join(headers) + body
