"""Offsets from DWARF: of real headers, in every form, and from malformed data."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rbtrace_py.errors import BadElf
from rbtrace_py.linux import cache
from rbtrace_py.linux.elf.reader import ElfFile
from rbtrace_py.linux.elf.symbols import build_id, debug_link
from rbtrace_py.rubyvm.dwarf import fields as dwarf
from rbtrace_py.rubyvm.dwarf.fields import FromDwarf, fields_from_dwarf
from rbtrace_py.rubyvm.layout import Field, Table
from rbtrace_py.rubyvm.layouts import table_for

HEADERS = next(
    Path("/usr/include").glob("*-linux-gnu/ruby-3.1.0/rb_mjit_min_header-3.1.*.h"), None
)
VERSION = HEADERS.stem.rpartition("-")[2] if HEADERS else ""

NOT_IN_HEADERS = {
    "symbols_last_id", "symbols_ids", "fiber_prev", "fiber_ec", "fiber_status",
    "objspace_flags", "objspace_gc_bit", "mutex_owner", "queue_items", "queue_waiting",
    "queue_pushing", "queue_most", "io_fd", "io_pid", "objspace_count",
}  # fmt: skip
"""Structures that only symbol.c, cont.c, gc.c, thread.c, and io.h define."""

REST = """
typedef struct { unsigned last_id; void *sym; unsigned long ids; } rb_symbols_t;
struct context { long before[10]; struct { long stack; } saved_ec; };
typedef struct rb_fiber_struct {
    struct context cont; struct rb_fiber_struct *prev;
    enum fiber_status { FIBER_CREATED, FIBER_RESUMED } status : 2;
} rb_fiber_t;
typedef struct rb_objspace {
    unsigned long limit, increase;
    struct { unsigned mode : 2, stop : 1, stress : 1, no : 1, during_gc : 1; } flags;
    struct { int run; unsigned long count; } profile;
} rb_objspace_t;
typedef struct rb_mutex_struct { void *fiber, *next_mutex; } rb_mutex_t;
struct rb_queue {
    void *waitq[2]; unsigned long fork_gen, que; int num_waiting;
} __attribute__((packed));
struct rb_szqueue {
    struct rb_queue q; int num_waiting_push; void *pushq[2]; long max;
} __attribute__((packed));
typedef struct rb_io_t {
    unsigned long self; void *stdio_file; int fd, mode, pid;
} rb_io_t;
rb_symbols_t symbols; rb_fiber_t fiber; rb_objspace_t objspace; rb_mutex_t mutex;
struct rb_szqueue szqueue; rb_io_t io;
"""
"""Structures of those, in short."""

SHORT = {
    "symbols_last_id": 0, "symbols_ids": 16, "fiber_ec": 80, "fiber_prev": 88,
    "fiber_status": 96, "objspace_flags": 16, "objspace_gc_bit": 5, "mutex_owner": 0,
    "queue_items": 24, "queue_waiting": 32, "queue_pushing": 36, "queue_most": 56,
    "io_fd": 16, "io_pid": 24, "objspace_count": 32,
}  # fmt: skip

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_ruby(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile Ruby 3.1's own headers as vm.c, and the rest as cont.c."""
    if not HEADERS:
        pytest.skip("needs the headers of Debian's ruby3.1-dev")
    built: dict[tuple[str, ...], Path] = {}

    def compile_it(*flags: str) -> Path:
        if flags not in built:
            directory = tmp_path_factory.mktemp("ruby")
            (directory / "vm.c").write_text(f'#include "{HEADERS}"\n')
            (directory / "cont.c").write_text(REST)
            run(
                ["gcc", "-w", "-fPIC", "-shared", "-fno-eliminate-unused-debug-types",
                 "-Wl,--unresolved-symbols=ignore-all", "-Wl,--build-id",
                 *(flags or ["-g"]), "-o", "libruby.so", "vm.c", "cont.c"],
                directory,
            )  # fmt: skip
            built[flags] = directory / "libruby.so"
        return built[flags]

    return compile_it


@pytest.fixture
def library(compile_ruby: Compile, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copy(compile_ruby(), tmp_path / "libruby.so"))


def run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def look(path: Path, *roots: Path, table: Table | None = None) -> FromDwarf | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return fields_from_dwarf(
            ElfFile(fd),
            fd,
            os.fsencode(path),
            [os.fsencode(root) for root in roots],
            table or table_for(VERSION),
        )
    finally:
        os.close(fd)


def assert_is_3_1(found: FromDwarf | None) -> None:
    assert found is not None
    table = table_for(VERSION).fields
    assert set(found.fields) == set(table)
    of_headers = {n: f for n, f in found.fields.items() if n not in NOT_IN_HEADERS}
    assert of_headers == {n: f for n, f in table.items() if n not in NOT_IN_HEADERS}
    assert {n: found.fields[n].offset for n in NOT_IN_HEADERS} == SHORT
    assert {f.member for f in found.fields.values()} == {
        f.member for f in table.values()
    }


@pytest.mark.parametrize(
    "flags",
    [
        ("-g",),
        ("-gdwarf-2", "-gstrict-dwarf"),
        ("-gdwarf-3", "-gstrict-dwarf"),
        ("-gdwarf-4",),
        ("-gdwarf-5",),
        ("-g", "-gz=zlib"),
        ("-g3", "-O2"),
        ("-g", "-O2", "-flto"),
    ],
    ids=" ".join,
)
def test_each_form_of_dwarf_says_what_the_table_says(
    compile_ruby: Compile, flags: tuple[str, ...]
) -> None:
    library = compile_ruby(*flags)
    found = look(library)
    assert_is_3_1(found)
    assert found is not None
    assert found.path == str(library)


def test_dwarf_that_units_share(library: Path) -> None:
    if shutil.which("dwz") is None:
        pytest.skip("needs dwz")
    run(["dwz", str(library)], library.parent)
    assert_is_3_1(look(library))


def test_a_file_without_dwarf(library: Path) -> None:
    run(["strip", str(library)], library.parent)
    assert look(library, library.parent) is None


def test_type_units(compile_ruby: Compile) -> None:
    """gcc leaves out the typedef of a structure that it has put into such a unit."""
    found = look(compile_ruby("-gdwarf-4", "-fdebug-types-section"))
    assert found is not None
    table = table_for(VERSION).fields
    assert set(table) - set(found.fields) == {"ext_ivars"}
    assert all(
        found.fields[n] == table[n] for n in found.fields if n not in NOT_IN_HEADERS
    )


@pytest.mark.parametrize(
    "flags",
    [("-g", "-gsplit-dwarf"), ("-gdwarf-5", "-fdebug-types-section")],
    ids=" ".join,
)
def test_dwarf_that_cannot_be_followed(
    compile_ruby: Compile, flags: tuple[str, ...]
) -> None:
    """In other files, or in type units of DWARF 5: the table stands."""
    library = compile_ruby(*flags)
    for file in library.parent.glob("*.dwo"):
        file.unlink()
    assert look(library) is None


def test_a_member_that_is_not_there_is_left_to_the_table(library: Path) -> None:
    table = table_for(VERSION)
    fields = {
        "ec_cfp": Field(0, "rb_execution_context_t.cfp"),
        "ec_fiber": Field(0, "rb_execution_context_t.gone"),
        "th_vm": Field(0, "rb_gone_t.vm"),
        "th_ec": Field(0, "rb_thread_t.ec.cfp"),
        "th_self": Field(0, "sizeof rb_gone_t + rb_thread_t.self"),
        "th_status": Field(0, "rb_thread_t.to_kill"),
    }
    found = look(library, table=replace(table, fields=fields))
    assert found is not None
    assert found.fields == {"ec_cfp": Field(16, "rb_execution_context_t.cfp")}


# ------------------------------------------------------------ separate files


def split(library: Path, debug: Path) -> Path:
    """Take the DWARF out of a library, as distributions do."""
    debug.parent.mkdir(parents=True, exist_ok=True)
    run(["objcopy", "--only-keep-debug", str(library), str(debug)], library.parent)
    run(["strip", str(library)], library.parent)
    return debug


def link(library: Path, debug: Path) -> None:
    run(["objcopy", f"--add-gnu-debuglink={debug}", str(library)], library.parent)


def of_build_id(root: Path, library: Path) -> Path:
    with library.open("rb") as file:
        identity = build_id(ElfFile(file.fileno()))
    assert identity is not None
    digits = identity.hex()
    return root / f"usr/lib/debug/.build-id/{digits[:2]}/{digits[2:]}.debug"


def test_a_debug_file_by_build_id(library: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    debug = split(library, of_build_id(root, library))
    found = look(library, tmp_path / "other", root)
    assert_is_3_1(found)
    assert found is not None
    assert found.path == str(debug)


def test_a_debug_file_with_another_build_id(
    compile_ruby: Compile, library: Path, tmp_path: Path
) -> None:
    place = of_build_id(tmp_path, library)
    place.parent.mkdir(parents=True)
    shutil.copy(compile_ruby("-g3", "-O2"), place)
    run(["strip", str(library)], tmp_path)
    assert look(library, tmp_path) is None


@pytest.mark.parametrize("place", [".", ".debug", "usr/lib/debug"])
def test_a_debug_file_by_its_name(library: Path, tmp_path: Path, place: str) -> None:
    """The path is as the target has it; the roots say where that is."""
    root = tmp_path / "root"
    directory = root / "opt/lib"
    inside = directory / "libruby.so"
    directory.mkdir(parents=True)
    shutil.move(library, inside)
    run(["objcopy", "--remove-section=.note.gnu.build-id", str(inside)], root)
    where = root / place / "opt/lib" if "usr" in place else directory / place
    debug = split(inside, where / "libruby.debug")
    link(inside, debug)
    fd = os.open(inside, os.O_RDONLY)
    try:
        elf = ElfFile(fd)
        found = fields_from_dwarf(
            elf, fd, b"/opt/lib/libruby.so", [os.fsencode(root)], table_for(VERSION)
        )
    finally:
        os.close(fd)
    assert_is_3_1(found)
    assert found is not None
    assert os.path.normpath(found.path) == str(debug)


def test_a_debug_file_that_is_not_the_one_linked(library: Path, tmp_path: Path) -> None:
    debug = split(library, tmp_path / "libruby.debug")
    link(library, debug)
    assert_is_3_1(look(library, Path("/")))
    with debug.open("ab") as file:
        file.write(b"\0")
    with library.open("rb") as file:
        linked = debug_link(ElfFile(file.fileno()))
    assert linked is not None
    assert zlib.crc32(debug.read_bytes()) != linked.crc
    assert look(library, Path("/")) is None


def test_a_linked_debug_file_with_another_build_id(
    compile_ruby: Compile, library: Path, tmp_path: Path
) -> None:
    debug = tmp_path / "libruby.debug"
    shutil.copy(compile_ruby("-g3", "-O2"), debug)
    run(["strip", str(library)], tmp_path)
    link(library, debug)
    assert look(library, Path("/")) is None


def test_links_do_not_lead_out_of_the_root(library: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    debug = split(library, of_build_id(tmp_path / "outside", library))
    place = of_build_id(root, library)
    place.parent.mkdir(parents=True)
    for link in (debug, "../" * 99 + str(debug)[1:]):
        place.symlink_to(link)
        assert place.samefile(debug)
        assert look(library, root) is None
        place.unlink()
    # The same links, if the target has the file there.
    inside = root / str(debug)[1:]
    inside.parent.mkdir(parents=True)
    shutil.copy(debug, inside)
    place.symlink_to(debug)
    debug.unlink()
    assert_is_3_1(look(library, root))


def test_files_that_block_in_the_place_of_a_debug_file(
    library: Path, tmp_path: Path
) -> None:
    place = of_build_id(tmp_path, library)
    place.parent.mkdir(parents=True)
    run(["strip", str(library)], tmp_path)
    os.mkfifo(place)
    assert look(library, tmp_path) is None
    place.unlink()
    place.symlink_to("/dev/zero")
    assert look(library, tmp_path) is None
    place.unlink()
    place.symlink_to(place)
    assert look(library, tmp_path) is None


# --------------------------------------------------------------------- cache


def entries(directory: Path) -> list[Path]:
    return sorted((directory / "rbtrace-py" / "dwarf").glob("*.json"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(place))
    return place


def test_results_are_cached_by_the_files_contents(
    library: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = look(library)
    assert len(entries(home)) == 1

    def ask(*_: object) -> object:
        raise AssertionError("asked again")

    monkeypatch.setattr(dwarf, "_ask", ask)
    assert look(library) == first
    with library.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(AssertionError, match="asked again"):
        look(library)


def test_words_that_differ_are_asked_for(library: Path, home: Path) -> None:
    look(library)
    assert look(library, table=table_for("3.3.8")) is not None
    assert len(entries(home)) == 2


@pytest.mark.parametrize(
    "lie",
    [
        [], 1, None, {"rb_thread_t.ec": 5}, {"rb_thread_t.ec": [-8, 0]},
        {"rb_thread_t.ec": [1e3, 0]}, {"rb_thread_t.ec": [True, 0]},
        {"rb_thread_t.ec": [99999999, 0]},
    ],
)  # fmt: skip
def test_a_wrong_entry_is_refused(library: Path, home: Path, lie: object) -> None:
    look(library)
    (entry,) = entries(home)
    cache.store("dwarf", entry.stem, lie)
    assert_is_3_1(look(library))


def test_an_entry_that_others_may_write_is_not_believed(
    library: Path, home: Path
) -> None:
    look(library)
    (entry,) = entries(home)
    name = entry.stem
    assert cache.load("dwarf", name) is not None
    entry.chmod(0o666)
    assert cache.load("dwarf", name) is None
    entry.chmod(0o600)
    entry.parent.chmod(0o777)
    assert cache.load("dwarf", name) is None
    entry.parent.chmod(0o700)
    assert cache.load("dwarf", name) is not None
    elsewhere = home / "elsewhere"
    entry.rename(elsewhere)
    entry.symlink_to(elsewhere)
    assert cache.load("dwarf", name) is None


def test_without_a_cache(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert_is_3_1(look(library))


def test_a_file_that_is_too_long_is_not_hashed(library: Path) -> None:
    with library.open("rb") as file:
        assert cache.content_hash(file.fileno(), 1000) is None
        assert cache.content_hash(file.fileno(), 1 << 30) is not None


# ---------------------------------------------------------------------- lies


def sections(library: Path) -> list[tuple[int, int]]:
    """Return (offset, size) of all sections with DWARF data."""
    with library.open("rb") as file:
        elf = ElfFile(file.fileno())
        return [(s.offset, s.size) for s in elf.sections if b"debug" in s.name]


def look_at_bytes(data: bytes, path: Path) -> FromDwarf | None:
    path.write_bytes(data)
    try:
        return look(path)
    except BadElf:
        return None


@pytest.mark.parametrize("seed", range(6))
def test_dwarf_at_random(library: Path, seed: int) -> None:
    """Garbage gives no result, or plausible offsets."""
    rng = random.Random(seed)
    data = bytearray(library.read_bytes())
    for offset, size in sections(library):
        if seed % 2:
            data[offset : offset + size] = rng.randbytes(size)
        for _ in range(size // 200):
            data[offset + rng.randrange(size)] = rng.randrange(256)
    found = look_at_bytes(bytes(data), library)
    assert found is None or all(
        0 <= field.offset < 1 << 16 for field in found.fields.values()
    )


@pytest.mark.parametrize("eighths", range(1, 8))
def test_a_file_that_was_cut(library: Path, eighths: int) -> None:
    data = library.read_bytes()
    assert look_at_bytes(data[: len(data) * eighths // 8], library) is None


def test_sections_of_dwarf_that_were_cut(library: Path) -> None:
    data = bytearray(library.read_bytes())
    for offset, size in sections(library):
        data[offset + size // 2 : offset + size] = bytes(size - size // 2)
    look_at_bytes(bytes(data), library)


def test_a_reader_that_does_not_end_is_ended(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has a limit on CPU time and on elapsed time."""
    worker = tmp_path / "dwarf.py"
    (tmp_path / "worker.py").write_text("import time\ntime.sleep(100)\n")
    monkeypatch.setattr(dwarf, "__file__", str(worker))
    monkeypatch.setattr(dwarf, "_SECONDS", 0.1)
    began = time.monotonic()
    assert look(library) is None
    assert time.monotonic() - began < 90, "it was not ended"


def test_a_reader_short_of_memory_or_time(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dwarf, "_MEMORY", 20 << 20)
    assert look(library) is None
    monkeypatch.setattr(dwarf, "_MEMORY", 1 << 30)
    monkeypatch.setattr(dwarf, "_SECONDS", 0)
    assert look(library) is None


def test_without_pyelftools(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dwarf, "_pyelftools", lambda: None)
    assert look(library) is None
