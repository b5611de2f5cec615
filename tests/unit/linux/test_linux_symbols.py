"""Symbols, relocations, build IDs, and load addresses, compared with binutils."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from linux_targets import compile_c, running

import rubies
from rbtrace_py.errors import BadElf
from rbtrace_py.linux.elf.reader import ElfFile
from rbtrace_py.linux.elf.symbols import (
    SymbolTable,
    build_id,
    build_id_in,
    debug_link,
    load_bias,
)
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.process import Process

SOURCE = """
int shared_number = 0x12345678;
int *pointer_to_it = &shared_number;
extern int elsewhere(int);
static int hidden = 7;
static const char text[] = "some text";
const char *pointer_to_text = text;
__thread int per_thread = 3;
int *hidden_one(void) { return &hidden; }
int twice(int a) { return 2 * a; }
int half(int a) { return elsewhere(a) + per_thread; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("symbols")
    source = folder / "lib.c"
    source.write_text(SOURCE)
    flags = ("-shared", "-fPIC", "-Wl,--build-id=sha1")
    return compile_c(source, folder / "lib.so", *flags)


@pytest.fixture
def open_file() -> Iterator[Callable[[Path], int]]:
    opened: list[int] = []

    def open_it(path: Path) -> int:
        opened.append(os.open(path, os.O_RDONLY))
        return opened[-1]

    yield open_it
    for fd in opened:
        os.close(fd)


def nm(path: Path, *options: str) -> dict[str, tuple[int, int]]:
    """Address and size by name, of defined symbols that are not thread-local."""
    if shutil.which("nm") is None:
        pytest.skip("needs binutils")
    command = ["nm", "-S", "--defined-only", *options, str(path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^(\w{16}) (\w{16}) ([A-Za-z]) ([^@\s]+)", text, re.MULTILINE)
    return {name: (int(at, 16), int(size, 16)) for at, size, kind, name in rows}


def test_finds_what_nm_finds(library: Path, open_file: Callable[[Path], int]) -> None:
    table = SymbolTable.open(open_file(library))
    expected = nm(library)
    assert {"shared_number", "twice", "hidden", "text"} <= set(expected)
    del expected["per_thread"]
    for name, (address, size) in expected.items():
        assert table.find(name) == (name, address, size)


@pytest.mark.parametrize("name", ["elsewhere", "per_thread", "nothing", "", "wice"])
def test_does_not_find(
    library: Path, open_file: Callable[[Path], int], name: str
) -> None:
    assert SymbolTable.open(open_file(library)).find(name) is None


def test_stripped(
    library: Path, open_file: Callable[[Path], int], tmp_path: Path
) -> None:
    subprocess.run(["strip", "-o", tmp_path / "lib.so", library], check=True)
    table = SymbolTable.open(open_file(tmp_path / "lib.so"))
    assert table.find("shared_number") is not None
    assert table.find("hidden") is None


@pytest.mark.parametrize("name", rubies.EACH)
def test_a_real_ruby(name: str, open_file: Callable[[Path], int]) -> None:
    root = Path("/")
    if name != rubies.HERE:
        rubies.need(name)
        root = rubies.DIRECTORY / name
    found = {path.resolve() for path in root.glob("usr/lib/*/libruby*.so.*.*")}
    if not found:
        pytest.skip("this Ruby has no libruby")
    for path in found:
        _compare_with_nm(path, open_file(path))


def _compare_with_nm(path: Path, fd: int) -> None:
    began = time.process_time()
    table = SymbolTable.open(fd)
    found = {name: table.find(name) for name in ("ruby_version", "rb_cObject")}
    assert table.find("no_such_symbol") is None
    assert time.process_time() - began < 0.1  # measured: 1 ms
    expected = nm(path, "-D")
    for name, symbol in found.items():
        assert symbol == (name, *expected[name])
    version = found["ruby_version"]
    assert version is not None
    offset = table.elf.file_offset(version.address, 0)
    assert offset is not None
    text = table.elf.read(offset, version.size - 1).decode()
    assert f".so.{text}".startswith(f".so{path.name.partition('.so')[2]}")


def test_build_id(library: Path, open_file: Callable[[Path], int]) -> None:
    done = subprocess.run(["file", "-b", library], capture_output=True, text=True)
    found = build_id(ElfFile(open_file(library)))
    assert found is not None
    assert len(found) == 20
    if "BuildID[sha1]=" in done.stdout:
        assert f"BuildID[sha1]={found.hex()}" in done.stdout


def test_build_id_without_sections(
    library: Path, open_file: Callable[[Path], int], open_bytes: Callable[[bytes], int]
) -> None:
    data = bytearray(library.read_bytes())
    data[0x28:0x30] = bytes(8)  # e_shoff
    data[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    elf = ElfFile(open_bytes(bytes(data)))
    assert elf.sections == ()
    assert build_id(elf) == build_id(ElfFile(open_file(library)))
    assert SymbolTable(elf).find("twice") is None


def test_build_id_of_none() -> None:
    assert build_id_in(b"") is None
    assert build_id_in(b"\xff" * 64) is None


def test_debug_link(
    library: Path, open_file: Callable[[Path], int], tmp_path: Path
) -> None:
    debug, stripped = tmp_path / "lib.so.debug", tmp_path / "lib.so"
    subprocess.run(["objcopy", "--only-keep-debug", library, debug], check=True)
    link = f"--add-gnu-debuglink={debug}"
    subprocess.run(["objcopy", "--strip-all", link, library, stripped], check=True)
    found = debug_link(ElfFile(open_file(stripped)))
    assert found is not None
    assert found.name == b"lib.so.debug"
    assert found.crc == zlib.crc32(debug.read_bytes())
    assert debug_link(ElfFile(open_file(library))) is None
    # The debug file has the symbols, and the build ID of its library.
    assert build_id(ElfFile(open_file(debug))) is not None
    assert SymbolTable.open(open_file(debug)).find("hidden") is not None


def test_load_bias(target: Path) -> None:
    """A program that is not a PIE is loaded at the addresses in its file."""
    with running(target) as p:
        process = Process(p.pid)
        own = [m for m in mappings(process) if m.path.endswith(bytes(target))]
        fd = os.open(target, os.O_RDONLY)
        try:
            assert load_bias(ElfFile(fd), own) == 0  # static, not a PIE
        finally:
            os.close(fd)
        process.close()


def test_load_bias_of_a_library(open_file: Callable[[Path], int]) -> None:
    with Process(os.getpid()) as process:
        own = [m for m in mappings(process) if b"/libc.so.6" in m.path]
    assert own
    table = SymbolTable.open(open_file(Path(os.fsdecode(own[0].path))))
    bias = load_bias(table.elf, own)
    assert bias is not None
    getpid = table.find("getpid")
    assert getpid is not None
    import ctypes

    address = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
    assert bias + getpid.address == address
    assert load_bias(table.elf, []) is None


def test_hostile_tables(library: Path, open_bytes: Callable[[bytes], int]) -> None:
    """Bytes changed at random, most of them where headers and tables are."""
    good = library.read_bytes()
    elf = ElfFile(open_bytes(good))
    places = [(s.offset, s.size) for s in elf.sections if s.type in (2, 3, 4, 7, 11)]
    places += [(0, 64 + 56 * 12), (len(good) - 64 * len(elf.sections), 64 * 30)]
    signal.alarm(60)
    for seed in range(3000):
        choice = random.Random(seed)
        data = bytearray(good)
        for _ in range(choice.randint(1, 8)):
            start, size = choice.choice(places)
            at = min(start + choice.randrange(max(size, 1)), len(data) - 1)
            data[at] = choice.choice((0, 1, 0x7F, 0x80, 0xFF, choice.randrange(256)))
        _look_at_all(bytes(data))
    signal.alarm(0)


def _look_at_all(data: bytes) -> None:
    fd = os.memfd_create("hostile")
    try:
        os.write(fd, data)
        _look_at(ElfFile(fd))
    except BadElf:
        return
    finally:
        os.close(fd)


def _look_at(elf: ElfFile) -> None:
    table = SymbolTable(elf)
    looks: list[Callable[[], object]] = [
        lambda: table.find("twice"),
        lambda: table.find("hidden"),
        lambda: build_id(elf),
        lambda: debug_link(elf),
        lambda: elf.file_offset(0x1000, 0),
    ]
    for look in looks:
        with contextlib.suppress(BadElf):
            look()


def test_a_name_that_is_everywhere(
    library: Path, open_bytes: Callable[[bytes], int]
) -> None:
    """A string table that is a single name costs a bounded search."""
    data = bytearray(library.read_bytes())
    elf = ElfFile(open_bytes(bytes(data)))
    for section in elf.sections:
        if section.type == 3:
            names = b"a\0" * (section.size // 2)
            data[section.offset : section.offset + len(names)] = names
    began = time.process_time()
    SymbolTable.open(open_bytes(bytes(data))).find("a")
    assert time.process_time() - began < 1
