from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from elfmaker import (
    DATA_ADDRESS,
    PAGE,
    TEXT_ADDRESS,
    Elf,
    image_note,
    note,
    site_note,
)

from rbtrace_py.errors import BadElf
from rbtrace_py.linux.elf.notes import (
    ElfNotes,
    StapsdtNote,
    image_signature,
    parse_image_note,
    read_notes,
)
from rbtrace_py.linux.elf.reader import ElfFile
from rbtrace_py.model.probes import Operand, OperandRole, OperandType, ProbeRole

OpenBytes = Callable[[bytes], int]


@pytest.fixture
def read(open_bytes: OpenBytes) -> Callable[[Elf], ElfNotes]:
    return lambda made: read_notes(ElfFile(open_bytes(made.build())))


Read = Callable[[Elf], ElfNotes]


def test_a_site(read: Read) -> None:
    found = read(Elf(notes=site_note(semaphore=DATA_ADDRESS + 6)))
    assert found.sites == [
        StapsdtNote(
            provider="shop",
            name="checkout",
            arguments="-8@%rdi 8@%rsi",
            pc=TEXT_ADDRESS,
            address=TEXT_ADDRESS,
            offset=PAGE,
            semaphore_offset=2 * PAGE + 6,
        )
    ]
    assert not found.is_image
    assert (found.malformed, found.truncated) == (0, False)


def test_other_notes_are_passed_over(read: Read) -> None:
    others = note(b"GNU", 3, b"x" * 7) + note(b"stapsdt", 4, b"") + note(b"", 3, b"")
    found = read(Elf(notes=others + site_note() + others))
    assert len(found.sites) == 1
    assert found.malformed == 0


def test_prelink_moves_sites_and_semaphores(read: Read) -> None:
    moved = site_note(pc=0x500, base=0x9000, semaphore=DATA_ADDRESS + 2 - 0xB00)
    found = read(Elf(notes=moved, base_address=0x9000 + 0xB00))
    (site,) = found.sites
    assert site.pc == 0x500
    assert site.address == 0x500 + 0xB00
    assert site.offset == PAGE
    assert site.semaphore_offset == 2 * PAGE + 2


def test_prelink_backwards(read: Read) -> None:
    found = read(Elf(notes=site_note(pc=0x5000, base=0x9000), base_address=0x5000))
    assert found.sites[0].address == TEXT_ADDRESS


def test_no_base_no_move(read: Read) -> None:
    assert read(Elf(notes=site_note(base=0x9000))).sites[0].offset == PAGE
    made = Elf(notes=site_note(base=0), base_address=0x9000)
    assert read(made).sites[0].offset == PAGE


MALFORMED = {
    "site in data": site_note(pc=DATA_ADDRESS),
    "site nowhere": site_note(pc=0xDEAD0000),
    "semaphore in text": site_note(semaphore=TEXT_ADDRESS),
    "semaphore nowhere": site_note(semaphore=0xDEAD0000),
    "no provider": site_note(provider=b""),
    "no name": site_note(name=b""),
    "long name": site_note(name=b"x" * 257),
    "long arguments": site_note(arguments=b"8@%rdi " * 1000),
    "too short": note(b"stapsdt", 3, b"x" * 23),
    "strings not ended": note(b"stapsdt", 3, bytes(24) + b"shop\0checkout\0x"),
    "no strings": note(b"stapsdt", 3, bytes(24)),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_notes_are_counted(what: str, read: Read) -> None:
    found = read(Elf(notes=site_note() + MALFORMED[what] + site_note(name=b"next")))
    assert [site.name for site in found.sites] == ["checkout", "next"]
    assert found.malformed == 1


def test_names_are_made_safe(read: Read) -> None:
    found = read(Elf(notes=site_note(name=b"a\x1b[31m\xff", arguments=b"\x07")))
    assert found.sites[0].name == "a\\x1b[31m\\xff"
    assert found.sites[0].arguments == "\\x07"


def test_image_notes(read: Read) -> None:
    operands = [(1, 1, b"duration_ns"), (0, 2, b"sku"), (0, 4, b""), (0, 6, b"")]
    operands.append((9, 77, b"x\x1b"))
    found = read(Elf(notes=site_note(), image_notes=image_note(operands, role=2)))
    assert found.is_image
    image = found.images[TEXT_ADDRESS]
    assert image.role is ProbeRole.SPAN_END
    assert image.operands == (
        Operand("duration_ns", OperandType.INTEGER, OperandRole.DURATION, signed=True),
        Operand("sku", OperandType.STRING),
        Operand("arg2", OperandType.FLOAT),
        Operand("arg3", OperandType.NIL, signed=True),
        Operand("x\\x1b", OperandType.UNKNOWN, OperandRole.UNKNOWN),
    )


def test_an_unknown_version_is_ignored(read: Read) -> None:
    found = read(Elf(notes=site_note(), image_notes=image_note([], version=2)))
    assert found.is_image
    assert found.images == {}
    assert found.malformed == 0


def test_an_unknown_role_is_an_event() -> None:
    image = parse_image_note(bytes(8) + b"\x01\x00\x63\x00")
    assert image is not None
    assert image.role is ProbeRole.EVENT


def test_longer_notes_of_the_same_version() -> None:
    body = bytes(8) + b"\x01\x00\x00\x01" + b"\x03\x00\x01a" + b"added later"
    image = parse_image_note(body)
    assert image is not None
    assert [operand.name for operand in image.operands] == ["a"]
    assert image.method is None


def test_the_note_of_a_method() -> None:
    body = bytes(8) + b"\x01\x00\x02\x01" + b"\x03\x00\x01a" + b"\x0b\x04\x02Till#pay!"
    image = parse_image_note(body)
    assert image is not None
    assert [operand.name for operand in image.operands] == ["a"]
    assert image.method == "Till#pay!"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(11),
        bytes(8) + b"\x01\x00\x00\x01",
        bytes(8) + b"\x01\x00\x00\x01\x00",
        bytes(8) + b"\x01\x00\x00\x01\x01\x00",
        bytes(8) + b"\x01\x00\x00\x01\x09\x00\x01a",
        bytes(8) + b"\x01\x00\x00\xff" + b"\x02\x00\x01" * 254,
    ],
)
def test_image_notes_that_end_early(body: bytes, read: Read) -> None:
    with pytest.raises(BadElf):
        parse_image_note(body)
    found = read(Elf(notes=site_note(), image_notes=note(b"rbtrace", 1, body)))
    assert (found.malformed, found.images) == (1, {})


def test_the_signature_grows_with_notes(open_bytes: OpenBytes) -> None:
    one = Elf(notes=site_note(), image_notes=image_note([]))
    two = Elf(notes=site_note() * 2, image_notes=image_note([]) * 2)
    assert image_signature(open_bytes(one.build())) == (
        len(site_note()),
        len(image_note([])),
    )
    assert image_signature(open_bytes(two.build())) == (
        2 * len(site_note()),
        2 * len(image_note([])),
    )
    assert image_signature(open_bytes(Elf().build())) == (0, 0)


@pytest.fixture
def libruby() -> Path:
    for path in sorted(Path("/usr/lib").glob("*/libruby*.so.*")):
        return path.resolve()
    pytest.skip("needs libruby")


def shown_by_readelf(path: Path) -> list[tuple[str, str, int, str]]:
    if shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    shown = subprocess.run(
        ["readelf", "-nW", path], capture_output=True, text=True, check=True
    ).stdout
    row = (
        r"Provider: (.*)\n\s+Name: (.*)\n\s+Location: (0x\w+), Base: 0x\w+,"
        r" Semaphore: 0x\w+\n\s+Arguments: ?(.*)"
    )
    return [
        (provider, name, int(location, 16), arguments)
        for provider, name, location, arguments in re.findall(row, shown)
    ]


def as_readelf(path: Path) -> list[tuple[str, str, int, str]]:
    with path.open("rb") as file:
        found = read_notes(ElfFile(file.fileno()))
    assert found.malformed == 0
    return [(s.provider, s.name, s.pc, s.arguments) for s in found.sites]


def test_libruby_as_readelf_sees_it(libruby: Path) -> None:
    assert as_readelf(libruby) == shown_by_readelf(libruby)


def test_a_compiled_program_as_readelf_sees_it(target: Path) -> None:
    read = [row for row in as_readelf(target) if row[0] == "shop"]
    assert read == [row for row in shown_by_readelf(target) if row[0] == "shop"]
    assert [row[1] for row in read] == ["sold", "sold", "sold", "paid", "idle"]


def test_sites_are_nops_in_the_file(target: Path) -> None:
    with target.open("rb") as file:
        found = read_notes(ElfFile(file.fileno()))
        sites = [site for site in found.sites if site.provider == "shop"]
        assert {os.pread(file.fileno(), 1, site.offset) for site in sites} == {b"\x90"}
        (paid,) = (site for site in sites if site.name == "paid")
        assert os.pread(file.fileno(), 2, paid.semaphore_offset) == b"\0\0"
    assert [site.semaphore_offset for site in sites if site is not paid] == [0] * 4
