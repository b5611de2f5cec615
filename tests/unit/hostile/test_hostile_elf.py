"""Malformed ELF files: each is read or refused, in bounded time and memory."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import struct
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from elfmaker import TEXT_ADDRESS, Elf, image_note, note, site_note

from rbtrace_py.errors import BadElf
from rbtrace_py.linux import probes as probes_module
from rbtrace_py.linux.binaries import MappedFile, OpenBinary
from rbtrace_py.linux.elf import notes as notes_module
from rbtrace_py.linux.elf import reader as elf_module
from rbtrace_py.linux.elf.notes import image_signature, read_notes
from rbtrace_py.linux.elf.reader import Budget, ElfFile
from rbtrace_py.linux.probes import ProbeCache, Problem, probes_of_file, scan_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.model.probes import Binary, Probe

SOAK = bool(os.environ.get("RBTRACE_SOAK"))
BINARY = Binary(1, 2, "/hostile")
U32, U64 = (1 << 32) - 1, (1 << 64) - 1

GOOD = Elf(
    notes=site_note() + site_note(name=b"next", pc=TEXT_ADDRESS + 16),
    image_notes=image_note([(0, 1, b"id"), (0, 2, b"sku")]),
    base_address=0x9000,
)


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    """A hang ends the test, as does the use of a gigabyte more than before."""
    signal.alarm(600 if SOAK else 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.alarm(0)


def read_fd(fd: int) -> tuple[list[Probe], list[Problem]] | None:
    """Return what is found in a file, or None if it is refused."""
    try:
        image_signature(fd)
        return probes_of_file(ElfFile(fd), BINARY)
    except BadElf:
        return None


@pytest.fixture
def open_bytes(tmp_path: Path) -> Iterator[Callable[[bytes], int]]:
    with contextlib.ExitStack() as opened:

        def open_them(data: bytes) -> int:
            path = tmp_path / "elf"
            path.write_bytes(data)
            return opened.enter_context(path.open("rb")).fileno()

        yield open_them


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], tuple[list[Probe], list[Problem]] | None]:
    def read_bytes(data: bytes) -> tuple[list[Probe], list[Problem]] | None:
        path = tmp_path / "elf"
        path.write_bytes(data)
        with path.open("rb") as file:
            return read_fd(file.fileno())

    return read_bytes


Read = Callable[[bytes], "tuple[list[Probe], list[Problem]] | None"]


def test_the_good_one(read: Read) -> None:
    found = read(GOOD.build())
    assert found is not None
    probes, problems = found
    assert [probe.name for probe in probes] == ["checkout", "next"]
    assert problems == []


def real_files() -> list[Path]:
    patterns = ("/usr/lib/*/libruby*.so.*", "/usr/lib/*/libc.so.6")
    return [path for p in patterns for path in sorted(Path("/").glob(p[1:]))[:1]]


def test_truncated(read: Read) -> None:
    data = GOOD.build()
    for length in range(0, len(data), 1 if SOAK else 64):
        assert read(data[:length]) is None


@pytest.mark.parametrize("path", real_files(), ids=str)
def test_real_files_truncated(path: Path, tmp_path: Path) -> None:
    """At every 64th byte of the ends, and coarsely between them."""
    copy = tmp_path / "elf"
    data = path.read_bytes()
    copy.write_bytes(data)
    edge = 1 << (16 if SOAK else 13)
    lengths = {*range(0, edge, 64), *range(len(data) - edge, len(data), 64)}
    lengths |= set(range(0, len(data), len(data) // 100))
    with copy.open("r+b") as file:
        for length in sorted(lengths, reverse=True):
            file.truncate(length)
            assert read_fd(file.fileno()) is None


def mutated(data: bytes, chance: random.Random, places: list[int]) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.choice(places)
        size = chance.choice((1, 2, 4, 8))
        value = chance.choice((0, 1, 0x7F, 0xFF, U32, U64, chance.getrandbits(64)))
        changed[at : at + size] = (value & U64).to_bytes(8, "little")[:size]
    return bytes(changed[: len(data)])


@pytest.mark.parametrize("seed", range(500 if SOAK else 5))
def test_mutations(seed: int, read: Read) -> None:
    chance = random.Random(seed)
    data = GOOD.build()
    places = [*range(200), *range(0x3000, len(data))]
    for _ in range(200):
        found = read(mutated(data, chance, places))
        if found is not None:
            assert all(is_sane(probe, len(data)) for probe in found[0])


@pytest.mark.parametrize("seed", range(100 if SOAK else 2))
def test_mutations_of_a_real_file(seed: int, read: Read) -> None:
    paths = real_files()
    if not paths:
        pytest.skip("needs libruby or libc")
    chance = random.Random(seed)
    data = paths[0].read_bytes()
    head, tail = range(0x400), range(len(data) - 0x1000, len(data))
    note_at = data.find(b"stapsdt\0")
    notes = range(note_at - 12, note_at + 4000) if note_at > 0 else range(0)
    places = [*head, *tail, *notes]
    for _ in range(20):
        found = read(mutated(data, chance, places))
        if found is not None:
            assert all(is_sane(probe, len(data)) for probe in found[0])


def is_sane(probe: Probe, size: int) -> bool:
    return (
        probe.full_name.isprintable()
        and probe.signature.isprintable()
        and all(0 <= site.offset < size for site in probe.sites)
        and all(0 <= site.semaphore_offset < size for site in probe.sites)
        and all(len(s.locations) == len(probe.operands) for s in probe.sites)
    )


REFUSED = {
    "sections beyond the end": {"shoff": 1 << 40},
    "sections beyond 64 bits": {"shoff": U64},
    "segments beyond the end": {"phoff": 1 << 40},
    "segments beyond 64 bits": {"phoff": U64 - 7},
    "more segments than fit": {"phnum": 0xFFFE},
    "more sections than fit": {"shnum": 0xFFFE},
    "no size of section headers": {"shentsize": 0},
    "odd size of section headers": {"shentsize": 40},
    "no size of program headers": {"phentsize": 0},
    "names in no section": {"shstrndx": 0xFF},
}


@pytest.mark.parametrize("what", REFUSED)
def test_lying_headers(what: str, read: Read) -> None:
    assert read(Elf(notes=site_note(), header=REFUSED[what]).build()) is None


@pytest.mark.parametrize("count", [1 << 20, 1 << 32, U64])
def test_lying_counts_in_section_0(count: int, read: Read) -> None:
    lying = Elf(header={"shnum": 0}, sections={b"": {"size": count}})
    assert read(lying.build()) is None
    if count <= U32:
        lying = Elf(header={"phnum": 0xFFFF}, sections={b"": {"info": count - 1}})
        assert read(lying.build()) is None


@pytest.mark.parametrize(
    "lie",
    [
        {"offset": 1 << 50},
        {"offset": U64},
        {"size": 1 << 32},
        {"size": U64},
        {"offset": U64, "size": U64},
        {"flags": 0x800},
    ],
)
@pytest.mark.parametrize("name", [b".note.stapsdt", b".note.rbtrace"])
def test_sections_that_reach_beyond(
    name: bytes, lie: dict[str, int], read: Read
) -> None:
    made = Elf(notes=site_note(), image_notes=b"", sections={name: lie})
    assert read(made.build()) is None


def test_names_beyond_their_section(read: Read) -> None:
    made = Elf(notes=site_note(), sections={b".note.stapsdt": {"name": U32}})
    assert read(made.build()) == ([], [])


def test_a_section_of_names_that_reaches_beyond(read: Read) -> None:
    assert read(Elf(sections={b".shstrtab": {"size": U64}}).build()) is None
    found = read(Elf(sections={b".shstrtab": {"size": 0}}).build())
    assert found == ([], [])


def test_notes_without_bytes(read: Read) -> None:
    """SHT_NOBITS: the section has a size, but no data in the file."""
    lie = {"type": 8, "size": U64}
    made = Elf(notes=site_note(), sections={b".note.stapsdt": lie})
    assert read(made.build()) == ([], [])


def test_sections_that_overlap(read: Read) -> None:
    """The whole file as notes, and the notes twice."""
    whole = {"offset": 0, "size": len(Elf(notes=site_note()).build())}
    made = Elf(notes=site_note(), sections={b".note.stapsdt": whole})
    found = read(made.build())
    assert found is not None
    twice = Elf(
        notes=site_note(), image_notes=b"", sections={b".note.rbtrace": {"name": 1}}
    )
    assert read(twice.build()) is not None


def test_notes_of_no_size_end(read: Read) -> None:
    """A reader that trusts the note's size would not advance."""
    data = bytes(12) * 300_000
    found = read(Elf(notes=data + site_note()).build())
    assert found == ([], [Problem("/hostile", "too many notes")])


@pytest.mark.parametrize("sizes", [(U32, 0), (0, U32), (U32, U32), (0x7FFFFFFF, 8)])
def test_notes_that_reach_beyond(sizes: tuple[int, int], read: Read) -> None:
    lie = struct.pack("<III", *sizes, 3) + b"stapsdt\0"
    found = read(Elf(notes=site_note() + lie + site_note(name=b"lost")).build())
    assert found is not None
    assert [probe.name for probe in found[0]] == ["checkout"]
    assert found[1] == [Problem("/hostile", "1 malformed notes")]


def test_a_count_of_operands_that_lies(read: Read) -> None:
    lie = image_note([(0, 1, b"id")], count=255)
    found = read(Elf(notes=site_note(), image_notes=lie).build())
    assert found is not None
    assert found[0][0].operands[0].name == "arg0"
    assert found[1] == [Problem("/hostile", "1 malformed notes")]


def test_many_notes(read: Read) -> None:
    """A file has as many as are read, all of one probe; memory is in proportion."""
    notes = site_note(arguments=b"8@%rdi " * 64) * 20_000
    tracemalloc.start()
    found = read(Elf(notes=notes).build())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert len(found[0]) == 1
    assert len(found[0][0].sites) == 1
    assert peak < 100 << 20


def test_a_sparse_giant(tmp_path: Path) -> None:
    """A file of a terabyte of zeros that says it is all notes."""
    path = tmp_path / "giant"
    size = 1 << 40
    lie = {"offset": 0x3000, "size": size - 0x3000}
    path.write_bytes(Elf(sections={b".note.stapsdt": lie}).build())
    try:
        os.truncate(path, size)
    except OSError as error:
        pytest.skip(f"no sparse file of a terabyte: {error}")
    with path.open("rb") as file:
        found = read_fd(file.fileno())
    assert found is not None
    assert found[1][-1] == Problem("/hostile", "too many notes")


def test_a_giant_of_sections(tmp_path: Path) -> None:
    """It has as many sections as are allowed, all with the longest name."""
    count = 90_000
    rows = bytearray(struct.pack("<IIQQQQIIQQ", *([0] * 10)) * count)
    head = bytearray(Elf(header={"shnum": 0, "shoff": 0x5000}).build()[:0x5000])
    head += bytes(0x5000 - len(head))
    struct.pack_into("<IIQQQQIIQQ", rows, 0, 0, 3, 0, 0, 0x1000, count, 1, 0, 0, 0)
    head[62:64] = (1).to_bytes(2, "little")
    struct.pack_into("<IIQQQQIIQQ", rows, 64, 1, 3, 0, 0, 0x1000, 0x1000, 0, 0, 0, 0)
    head[0x1000:0x2000] = b"x" * 0x1000
    path = tmp_path / "giant"
    path.write_bytes(bytes(head + rows))
    with path.open("rb") as file:
        assert len(ElfFile(file.fileno()).sections) == count
        assert read_fd(file.fileno()) == ([], [])


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "elf"
    good = GOOD.build()
    path.write_bytes(good)
    stop = threading.Event()

    def change() -> None:
        chance = random.Random(1)
        with path.open("r+b", buffering=0) as file:
            while not stop.is_set():
                file.truncate(chance.randrange(len(good)))
                os.pwrite(file.fileno(), good, 0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    writer = threading.Thread(target=change)
    writer.start()
    results = {"read": 0, "refused": 0}
    try:
        with path.open("rb") as file:
            for _ in range(50_000 if SOAK else 1000):
                found = read_fd(file.fileno())
                results["read" if found else "refused"] += 1
    finally:
        stop.set()
        writer.join()
        sys.setswitchinterval(interval)
    assert sum(results.values()) >= 1000


def test_the_same_note_a_thousand_times_is_one_site(read: Read) -> None:
    found = read(Elf(notes=site_note() * 1000).build())
    assert found is not None
    assert [len(probe.sites) for probe in found[0]] == [1]


def test_names_that_would_act_on_a_terminal(read: Read) -> None:
    name = b"\x1b]0;owned\x07\r\n\x9b31m"
    operand = [(0, 1, b"\x1b[2J\xe2\x80\xae")]
    made = Elf(
        notes=site_note(name=name, provider=b"\x1b[m"), image_notes=image_note(operand)
    )
    found = read(made.build())
    assert found is not None
    assert found[0][0].signature.isprintable()


def test_other_owners_of_our_section(read: Read) -> None:
    made = Elf(notes=site_note(), image_notes=note(b"evil", 1, b"x" * 99))
    found = read(made.build())
    assert found is not None
    assert found[0][0].operands[0].name == "arg0"


def lines_run(module: ModuleType, work: Callable[[], object]) -> int:
    """Return how many lines of a module run during some work: its cost without a
    clock."""
    count = 0

    def local(frame: FrameType, event: str, _: object) -> Callable[..., object]:
        nonlocal count
        count += event == "line"
        return local

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        return local if frame.f_code.co_filename == module.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def with_segments(made: Elf, count: int) -> bytes:
    """``made`` with ``count`` segments more, none of which holds a site."""
    data = bytearray(made.build())
    own = bytes(data[64 : 64 + 2 * 56])
    rows = [
        struct.pack("<IIQQQQQQ", 1, 5, 0x1000, at, at, 1, 1, 1)
        for at in range(1 << 32, (1 << 32) + 2 * count, 2)
    ]
    data[32:40] = len(data).to_bytes(8, "little")
    data[56:58] = (2 + count).to_bytes(2, "little")
    return bytes(data) + b"".join(rows) + own


def test_a_note_costs_the_same_however_many_segments_there_are(
    open_bytes: Callable[[bytes], int],
) -> None:
    made = Elf(notes=site_note(semaphore=0x2000) * 100)
    lines = []
    for count in (0, 9_000):
        elf = ElfFile(open_bytes(with_segments(made, count)))
        lines.append(lines_run(elf_module, lambda elf=elf: read_notes(elf)))
        assert len(read_notes(elf).sites) == 100
    assert lines[0] == lines[1]


def test_segments_in_no_order(open_bytes: Callable[[bytes], int]) -> None:
    elf = ElfFile(open_bytes(with_segments(Elf(), 100)))
    addresses = [segment.address for segment in elf.segments]
    assert addresses == sorted(addresses)
    assert elf.file_offset(TEXT_ADDRESS + 7, 1) == 0x1007
    assert elf.file_offset((1 << 32) + 50, 1) == 0x1000
    assert elf.file_offset((1 << 32) + 51, 1) is None


FILES = 20


@pytest.fixture
def scan_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., probes_module.Scan]:
    """Look at a process that has mapped these bytes as FILES files."""

    def scan(
        data: bytes, budget: Budget, cache: ProbeCache | None = None
    ) -> probes_module.Scan:
        files = []
        for number in range(FILES):
            path = tmp_path / str(number)
            if not path.exists():
                path.write_bytes(data)
            files.append(MappedFile(Binary(1, number, str(path)), ()))
        monkeypatch.setattr(probes_module, "mapped_files", lambda _: files)
        monkeypatch.setattr(
            probes_module,
            "open_mapped",
            lambda _, file: OpenBinary(os.open(file.binary.path, os.O_RDONLY), file),
        )
        monkeypatch.setattr(probes_module, "Budget", lambda: replace(budget))
        with Process(os.getpid()) as process:
            return scan_probes(process, cache)

    return scan


Scan = Callable[..., probes_module.Scan]


@pytest.mark.parametrize(
    "notes",
    [
        site_note(),
        site_note(name=b""),
        site_note(pc=U64),
        note(b"rbtrace", 1, b""),
        bytes(12),
    ],
    ids=["good", "nameless", "nowhere", "no image's", "nothing"],
)
@pytest.mark.parametrize("section", ["notes", "image_notes"])
def test_one_budget_of_notes_for_all_files(
    section: str, notes: bytes, scan_of: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    original = notes_module.iterate

    def iterate(*words: Any) -> Iterator[Any]:
        nonlocal read
        for each in original(*words):
            read += 1
            yield each

    monkeypatch.setattr(notes_module, "iterate", iterate)
    data = Elf(**{section: notes * 100}).build()
    found = scan_of(data, Budget(notes=250))
    # Each file is asked for one note more, as it may have had none.
    assert read <= 250 + FILES
    texts = [problem.text for problem in found.problems]
    assert texts.count("too many notes") == FILES - 2


def test_one_budget_of_bytes_for_all_files(
    scan_of: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    original = ElfFile.data

    def data_of(*words: Any) -> bytes:
        nonlocal read
        data = original(*words)
        read += len(data)
        return data

    monkeypatch.setattr(ElfFile, "data", data_of)
    data = Elf(notes=site_note() * 100).build()
    found = scan_of(data, Budget(bytes=10_000))
    assert 9_000 < read <= 10_000
    assert len(found.problems) >= FILES - 2


def test_one_budget_of_headers_for_all_files(scan_of: Scan) -> None:
    data = with_segments(Elf(notes=site_note()), 100)
    found = scan_of(data, Budget(headers=1_000))
    assert len(found.probes) == 9
    assert {problem.text for problem in found.problems} == {"too many program headers"}


def test_cached_files_use_no_budget_of_notes(scan_of: Scan) -> None:
    data = Elf(notes=site_note() * 10).build()
    cache = ProbeCache()
    assert len(scan_of(data, Budget(), cache).probes) == FILES
    again = scan_of(data, Budget(notes=0), cache)
    assert (len(again.probes), again.problems) == (FILES, [])
