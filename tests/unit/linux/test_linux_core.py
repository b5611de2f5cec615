"""Core files: made by hand, by the kernel's rules, truncated, and malformed."""

from __future__ import annotations

import gzip
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from coremaker import Core, files_note, program_note, thread_note
from linux_targets import compile_c, running

from rbtrace_py.errors import BadElf, NotPermitted, RbtraceError, UnreadableMemory
from rbtrace_py.linux.elf.core import CoreFile
from rbtrace_py.linux.unpack import open_unpacked

CORES = Path(__file__).resolve().parents[4] / "shared" / "coredumps"
PAGE = 4096
DATA = bytes(range(256)) * 16

GOOD = Core(
    notes=thread_note(101, 6, 0x1234, 0x7000)
    + thread_note(102)
    + program_note(100, b"ruby", b"ruby -e x\x1b[31m ")
    + files_note([(0x10000, 0x12000, 0, b"/bin/prog"), (0x12000, 0x13000, 2, b"/x")]),
    loads=[
        (0x10000, b"", PAGE, 5),
        (0x20000, DATA, PAGE, 6),
        (0x21000, DATA[::-1], PAGE, 6),
        (0x30000, DATA[:16], PAGE, 4),
    ],
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], str]:
    def write_it(data: bytes) -> str:
        path = tmp_path / "core"
        path.write_bytes(data)
        return str(path)

    return write_it


def test_notes(write: Callable[[bytes], str]) -> None:
    with CoreFile(write(GOOD.build())) as core:
        assert [(t.tid, t.signal) for t in core.notes.threads] == [(101, 6), (102, 0)]
        registers = core.notes.threads[0].registers
        assert (registers["rip"], registers["fs_base"]) == (0x1234, 0x7000)
        assert (core.notes.pid, core.notes.comm) == (100, "ruby")
        assert core.notes.command == "ruby -e x\\x1b[31m"
        assert core.notes.signal == 6
        assert core.paths() == [b"/bin/prog", b"/x"]
        assert not core.is_truncated
        shown = [(m.start, m.end, m.offset, m.perms, m.path) for m in core.mappings]
        assert shown == [
            (0x10000, 0x12000, 0, "r-xp", b"/bin/prog"),
            (0x12000, 0x13000, 0x2000, "r-xp", b"/x"),
            (0x20000, 0x21000, 0, "rw-p", b""),
            (0x21000, 0x22000, 0, "rw-p", b""),
            (0x30000, 0x31000, 0, "r--p", b""),
        ]


def test_memory(write: Callable[[bytes], str]) -> None:
    with CoreFile(write(GOOD.build())) as core:
        assert core.read(0x20010, 4) == DATA[16:20]
        assert core.read(0x20FFE, 4) == DATA[-2:] + DATA[::-1][:2]
        assert core.gather([(0x20000, 2), (0x21000, 1)]) == [b"\0\1", b"\xff"]
        assert core.read(0x20000, 0) == b""


@pytest.mark.parametrize(
    ("address", "size"),
    [
        (0x10000, 8),  # in the headers only
        (0x1FFFF, 2),
        (0x21FFF, 2),
        (0x30010, 1),  # beyond what the file has of the segment
        (0, 1),
        ((1 << 64) - 1, 8),
        (1 << 70, 1),
        (0x20000, 1 << 40),
        (0x20000, -1),
    ],
)
def test_no_memory(write: Callable[[bytes], str], address: int, size: int) -> None:
    with CoreFile(write(GOOD.build())) as core, pytest.raises(UnreadableMemory):
        core.read(address, size)


def test_gzipped(write: Callable[[bytes], str]) -> None:
    data = GOOD.build()
    members = gzip.compress(data[:700]) + gzip.compress(data[700:]) + bytes(100)
    with CoreFile(write(members)) as core:
        assert core.read(0x20000, PAGE) == DATA
        assert not core.is_truncated


def test_zeroes_take_no_room(write: Callable[[bytes], str]) -> None:
    big = Core(notes=thread_note(1), loads=[(0x10000, bytes(64 << 20), 64 << 20, 6)])
    fd, cut = open_unpacked(write(gzip.compress(big.build(), 1)))
    try:
        assert not cut
        status = os.fstat(fd)
        assert status.st_size > 64 << 20
        assert status.st_blocks * 512 < 1 << 20
        assert status.st_nlink == 0
    finally:
        os.close(fd)


def test_a_bomb(write: Callable[[bytes], str]) -> None:
    path = write(gzip.compress(bytes(32 << 20)))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BadElf, match="larger than 16 MiB"):
        CoreFile(path, limit=16 << 20)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk(write: Callable[[bytes], str]) -> None:
    """The limit on file size stands for the size of the disk."""
    path = write(gzip.compress(random.Random(1).randbytes(4 << 20)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(RbtraceError, match="cannot decompress") as caught:
            CoreFile(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert "TMPDIR" in caught.value.hint


def test_a_gzipped_one_cut_short(write: Callable[[bytes], str]) -> None:
    noise = random.Random(1).randbytes(1 << 20)
    made = Core(notes=thread_note(7), loads=[(0x10000, noise, len(noise), 6)])
    packed = gzip.compress(made.build())
    with CoreFile(write(packed[: len(packed) // 2])) as core:
        assert core.is_truncated
        assert [thread.tid for thread in core.notes.threads] == [7]
        assert core.read(0x10000, 1000) == noise[:1000]
        with pytest.raises(UnreadableMemory, match="cut short"):
            core.read(0x10000 + (1 << 20) - 8, 8)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not an ELF file"),
        (b"hello", "not an ELF file"),
        (GOOD.build()[:40], "truncated within the ELF header"),
        (GOOD.build()[:100], "beyond the file's end"),
        (Core(kind=3).build(), "not a core file"),
        (b"\x7fELF\x01\x01" + bytes(60), "32-bit"),
        (gzip.compress(GOOD.build())[:12], "not an ELF file"),
        (b"\x1f\x8b" + b"x" * 100, "damaged gzip"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 100, "compressed in an unsupported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_core(write: Callable[[bytes], str], data: bytes, text: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BadElf, match=text):
        CoreFile(write(data))
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RbtraceError, match="No such file"):
        CoreFile(str(tmp_path / "nothing"))
    with pytest.raises(RbtraceError, match="not a regular file"):
        CoreFile(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(RbtraceError, match="not a regular file"):
        CoreFile(str(tmp_path / "fifo"))


def test_not_permitted(write: Callable[[bytes], str]) -> None:
    path = write(GOOD.build())
    Path(path).chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(NotPermitted):
            CoreFile(path)
    finally:
        os.seteuid(user)


def test_cut_at_every_place(write: Callable[[bytes], str]) -> None:
    """The remaining part is read, and the missing part is reported."""
    data = GOOD.build()
    ends = {0x20000: len(data) - 16 - PAGE, 0x21000: len(data) - 16}
    for length in range(64 + 56 * 5, len(data), 97):
        with CoreFile(write(data[:length])) as core:
            assert core.is_truncated
            assert len(core.notes.threads) <= 2
            for address in (0x20000, 0x21000):
                if length >= ends[address]:
                    assert len(core.read(address, PAGE)) == PAGE
                    continue
                with pytest.raises(UnreadableMemory, match="cut short"):
                    core.read(address, PAGE)


def test_lies(write: Callable[[bytes], str]) -> None:
    """Headers and notes with random changes are read or refused."""
    good = GOOD.build()
    for seed in range(2000):
        choice = random.Random(seed)
        data = bytearray(good)
        for _ in range(choice.randint(1, 6)):
            at = choice.randrange(1400)
            data[at] = choice.choice((0, 1, 0x7F, 0x80, 0xFF, choice.randrange(256)))
        try:
            core = CoreFile(write(bytes(data)))
        except RbtraceError:
            continue
        with core:
            assert len(core.mappings) <= 16
            core.build_id_of(b"/bin/prog")
            for address in (0x10000, 0x20000, 0x30000):
                try:
                    assert len(core.read(address, 64)) == 64
                except UnreadableMemory:
                    continue


def test_more_files_than_there_are(write: Callable[[bytes], str]) -> None:
    made = Core(notes=thread_note(1) + files_note([(1, 2, 0, b"/x")], 1 << 60))
    with CoreFile(write(made.build())) as core:
        assert core.paths() == []
        assert core.notes.malformed == 1


def test_very_many_files_and_segments(write: Callable[[bytes], str]) -> None:
    """Looking through one for each of the other would take hours."""
    places = [PAGE * (16 + 2 * number) for number in range(60_000)]
    files = [(at, at + PAGE, 0, b"/lib/%d" % at) for at in places]
    made = Core(
        files_note(files), [(at, b"", PAGE, 5 + at // PAGE % 4) for at in places]
    )
    with CoreFile(write(made.build())) as core:
        found = core.mappings
        assert len(found) == 60_000
        assert {mapping.perms for mapping in found[::2]} == {"r-xp"}
        assert {mapping.perms for mapping in found[1::2]} == {"rwxp"}
        assert [core.build_id_of(path) for path in core.paths()] == [None] * 60_000


# ---------------------------------------------------------------- real files


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("core")
    (folder / "prog.c").write_text(
        '#include <stdio.h>\nconst char text[] = "a constant of the program";\n'
        'int main(void) { printf("ready %p\\n", (void *)text); fflush(stdout);'
        " getchar(); }\n"
    )
    flags = ("-Wl,--build-id=sha1", "-Wl,-z,separate-code")
    return compile_c(folder / "prog.c", folder / "prog", *flags)


@pytest.fixture(scope="module")
def real_core(
    program: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    """A core of it without its constants, and where they were."""
    if shutil.which("gcore") is None:
        pytest.skip("needs gdb's gcore")
    folder = tmp_path_factory.mktemp("gcore")
    with running(program) as process:
        # 0x31: private, and the first pages of ELF files, but no file's memory.
        Path(f"/proc/{process.pid}/coredump_filter").write_text("0x31")
        command = ["gcore", "-o", str(folder / "core"), str(process.pid)]
        done = subprocess.run(command, capture_output=True, text=True)
        path = folder / f"core.{process.pid}"
        if not path.exists():
            pytest.skip(f"gcore cannot make a core here: {done.stderr}")
        return path, int(process.ready_line.split()[1], 16)  # type: ignore[attr-defined]


def test_constants_come_from_the_program(
    real_core: tuple[Path, int], program: Path
) -> None:
    path, address = real_core
    with CoreFile(str(path)) as core:
        assert core.notes.comm == "prog"
        with pytest.raises(UnreadableMemory):
            core.read(address, 8)
        core.fill_from(os.fsencode(program), str(program))
        assert core.read(address, 25) == b"a constant of the program"


def test_another_build_is_refused(
    real_core: tuple[Path, int], program: Path, tmp_path: Path
) -> None:
    path, address = real_core
    changed = bytearray(program.read_bytes())
    at = changed.index(b"\x14\0\0\0\3\0\0\0GNU\0") + 12
    changed[at] ^= 1
    (tmp_path / "other").write_bytes(changed)
    with CoreFile(str(path)) as core:
        with pytest.raises(BadElf, match="another build"):
            core.fill_from(os.fsencode(program), str(tmp_path / "other"))
        with pytest.raises(UnreadableMemory):
            core.read(address, 8)


@pytest.mark.skipif(
    not CORES.is_dir(), reason="no core files of Rubies beside this checkout"
)
@pytest.mark.parametrize(
    ("name", "pid", "threads"),
    [
        ("2.1.6", 32691, 2),
        ("2.5.0", 26979, 2),
        ("2.7.2", 87989, 1),
        ("3.1.0", 41319, 1),
    ],
)
def test_cores_of_rubies(name: str, pid: int, threads: int) -> None:
    with CoreFile(str(CORES / f"ruby-{name}.core.gz")) as core:
        assert core.notes.pid == pid
        assert core.notes.comm == "ruby"
        assert len(core.notes.threads) == threads
        assert not core.is_truncated
        assert any(b"ruby" in path for path in core.paths())
