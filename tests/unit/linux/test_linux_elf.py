from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from elfmaker import DATA_ADDRESS, PAGE, TEXT_ADDRESS, Elf, site_note

from rbtrace_py.errors import BadElf
from rbtrace_py.linux.elf.reader import PF_W, PF_X, ElfFile, name_at

OpenBytes = Callable[[bytes], int]


def test_a_made_file(open_bytes: OpenBytes) -> None:
    elf = ElfFile(open_bytes(Elf(notes=site_note()).build()))
    assert elf.machine == 62
    assert [section.name for section in elf.sections] == [
        b"",
        b".note.stapsdt",
        b".shstrtab",
    ]
    assert elf.data(elf.named(b".note.stapsdt")[0], 1 << 20) == site_note()
    assert elf.data(elf.named(b".note.stapsdt")[0], 5) == site_note()[:5]
    assert elf.named(b"none") == []


def test_addresses_to_offsets(open_bytes: OpenBytes) -> None:
    elf = ElfFile(open_bytes(Elf().build()))
    assert elf.file_offset(TEXT_ADDRESS + 5, PF_X) == PAGE + 5
    assert elf.file_offset(TEXT_ADDRESS + 5, PF_W) is None
    assert elf.file_offset(DATA_ADDRESS, PF_W) == 2 * PAGE
    assert elf.file_offset(DATA_ADDRESS + PAGE, PF_W) is None
    assert elf.file_offset(0, 0) is None
    assert elf.file_offset((1 << 64) - 1, 0) is None


def test_more_sections_than_the_header_holds(open_bytes: OpenBytes) -> None:
    made = Elf(
        notes=site_note(),
        header={"shnum": 0, "shstrndx": 0xFFFF, "phnum": 0xFFFF},
        sections={b"": {"size": 3, "link": 2, "info": 2}},
    )
    elf = ElfFile(open_bytes(made.build()))
    assert len(elf.sections) == 3
    assert len(elf.segments) == 2
    assert elf.named(b".note.stapsdt")


def test_no_sections_at_all(open_bytes: OpenBytes) -> None:
    made = Elf(header={"shoff": 0, "shnum": 0, "shstrndx": 0})
    elf = ElfFile(open_bytes(made.build()))
    assert elf.sections == ()
    assert len(elf.segments) == 2


WRONG = {
    "not an ELF": b"#!/bin/sh\n" + bytes(100),
    "32-bit": Elf(elf_class=1).build(),
    "big-endian": Elf().build()[:5] + b"\2" + Elf().build()[6:],
    "truncated": Elf().build()[:40],
    "not an ELF file": b"",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_it_is_not(text: str, open_bytes: OpenBytes) -> None:
    with pytest.raises(BadElf, match=text):
        ElfFile(open_bytes(WRONG[text]))


def test_directories_cannot_be_read(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(BadElf, match="cannot be read"):
        ElfFile(fd)
    os.close(fd)


def test_names_are_bounded() -> None:
    assert name_at(b"\0.text\0", 1) == b".text"
    assert name_at(b"\0.text", 1) == b".text"
    assert name_at(b"x" * 10_000, 1) == b"x" * 256
    assert name_at(b"x", 1 << 40) == b""


def system_files() -> list[str]:
    found = [os.path.realpath(shutil.which("sh") or "/bin/sh")]
    for pattern in ("libruby*.so*", "libc.so.6"):
        paths = sorted(Path("/usr/lib").glob(f"*/{pattern}"))
        found += [str(path.resolve()) for path in paths[:1]]
    return found


@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
@pytest.mark.parametrize("path", system_files())
def test_sections_as_readelf_sees_them(path: str) -> None:
    shown = subprocess.run(
        ["readelf", "-SW", path], capture_output=True, text=True, check=True
    ).stdout
    row = r"^\s*\[\s*\d+\] (\S*)\s+[A-Z_]+\w*\s+([0-9a-f]{16}) ([0-9a-f]+) ([0-9a-f]+)"
    expected = [
        (name, int(address, 16), int(offset, 16), int(size, 16))
        for name, address, offset, size in re.findall(row, shown, re.MULTILINE)
        if name
    ]
    with open(path, "rb") as file:
        sections = ElfFile(file.fileno()).sections
    read = [(s.name.decode(), s.address, s.offset, s.size) for s in sections[1:]]
    assert len(read) > 10
    assert read == expected
