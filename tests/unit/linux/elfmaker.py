"""ELF files made by hand, in which each field can be wrong on purpose."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

TEXT_ADDRESS = 0x1000
DATA_ADDRESS = 0x2000
PAGE = 0x1000


def note(owner: bytes, kind: int, body: bytes) -> bytes:
    """An ``Elf64_Nhdr`` with its name and description, padded to 4 bytes."""
    head = struct.pack("<III", len(owner) + 1, len(body), kind)
    return head + _pad(owner + b"\0") + _pad(body)


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def site_note(
    name: bytes = b"checkout",
    arguments: bytes = b"-8@%rdi 8@%rsi",
    pc: int = TEXT_ADDRESS,
    base: int = 0,
    semaphore: int = 0,
    provider: bytes = b"shop",
) -> bytes:
    """A ``stapsdt`` note."""
    body = struct.pack("<QQQ", pc, base, semaphore)
    body += b"\0".join((provider, name, arguments)) + b"\0"
    return note(b"stapsdt", 3, body)


def image_note(
    operands: list[tuple[int, int, bytes]],
    pc: int = TEXT_ADDRESS,
    version: int = 1,
    role: int = 0,
    count: int | None = None,
) -> bytes:
    """An ``rbtrace`` note; operands are (role, type, name)."""
    count = len(operands) if count is None else count
    body = struct.pack("<QHBB", pc, version, role, count)
    for operand_role, kind, name in operands:
        body += bytes((2 + len(name), operand_role, kind)) + name
    return note(b"rbtrace", 1, body)


@dataclass
class Elf:
    """A file of one page of text, one of data, and sections of notes.

    ``header`` and ``sections`` hold fields to overwrite, by name.
    """

    notes: bytes = b""
    image_notes: bytes | None = None
    base_address: int | None = None
    machine: int = 62
    elf_class: int = 2
    header: dict[str, int] = field(default_factory=dict)
    sections: dict[bytes, dict[str, int]] = field(default_factory=dict)

    def build(self) -> bytes:
        contents = [(b".note.stapsdt", 7, 0, self.notes)]
        if self.image_notes is not None:
            contents.append((b".note.rbtrace", 7, 0, self.image_notes))
        if self.base_address is not None:
            contents.append((b".stapsdt.base", 1, self.base_address, b"\0"))
        body = bytearray(3 * PAGE)
        rows = [self._row(0, b"")]
        names = b"\0"
        for name, kind, address, data in contents:
            place = len(body)
            body += data + bytes(-len(data) % 8)
            rows.append(
                self._row(
                    len(names),
                    name,
                    type=kind,
                    address=address,
                    offset=place,
                    size=len(data),
                )
            )
            names += name + b"\0"
        place = len(body)
        full_names = names + b".shstrtab\0"
        body += full_names + bytes(-len(full_names) % 8)
        rows.append(
            self._row(
                len(names), b".shstrtab", type=3, offset=place, size=len(full_names)
            )
        )
        table_at = len(body)
        body += b"".join(rows)
        segments = self._segments()
        body[64 : 64 + len(segments)] = segments
        body[:64] = self._header(table_at, len(segments) // 56, len(rows))
        return bytes(body)

    def _row(self, name_offset: int, name: bytes, **values: int) -> bytes:
        fields = {
            **dict.fromkeys(("type", "flags", "address", "offset", "size"), 0),
            **dict.fromkeys(("link", "info", "align", "entsize"), 0),
        }
        fields = {"name": name_offset, **fields, **values}
        fields |= self.sections.get(name, {})
        return struct.pack("<IIQQQQIIQQ", *fields.values())

    def _segments(self) -> bytes:
        rows = ((5, PAGE, TEXT_ADDRESS), (6, 2 * PAGE, DATA_ADDRESS))
        return b"".join(
            struct.pack("<IIQQQQQQ", 1, flags, at, address, address, PAGE, PAGE, PAGE)
            for flags, at, address in rows
        )

    def _header(self, table_at: int, segments: int, sections: int) -> bytes:
        fields = {
            "type": 3,
            "machine": self.machine,
            "version": 1,
            "entry": 0,
            "phoff": 64,
            "shoff": table_at,
            "flags": 0,
            "ehsize": 64,
            "phentsize": 56,
            "phnum": segments,
            "shentsize": 64,
            "shnum": sections,
            "shstrndx": sections - 1,
        } | self.header
        ident = b"\x7fELF" + bytes((self.elf_class, 1, 1)) + bytes(9)
        return ident + struct.pack("<HHIQQQIHHHHHH", *fields.values())
