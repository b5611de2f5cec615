from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from elfmaker import Elf, image_note, site_note
from linux_targets import HERE, LIBRARY, compile_c, is_root, running

from processes import comes_true
from rbtrace_py.errors import NotPermitted
from rbtrace_py.linux import probes as module
from rbtrace_py.linux.binaries import open_binary
from rbtrace_py.linux.elf.reader import ElfFile
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.probes import (
    ProbeCache,
    ProbeState,
    StateReader,
    find_probes,
    image_signature,
    probes_of_file,
    scan_probes,
)
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.ruby_probes import RUBY_PROBES, is_ruby_binary
from rbtrace_py.model.probes import (
    Binary,
    LocationKind,
    OperandRole,
    OperandType,
    Probe,
    ProbeRole,
)


def shop(process: Process) -> dict[str, Probe]:
    found = find_probes(process)
    return {probe.name: probe for probe in found if probe.provider == "shop"}


def made(
    file: Elf, open_bytes: Callable[[bytes], int], path: str = "/x"
) -> list[Probe]:
    return probes_of_file(ElfFile(open_bytes(file.build())), Binary(1, 2, path))[0]


OpenBytes = Callable[[bytes], int]


def test_sites_of_one_name_are_one_probe(target: Path) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        found = shop(process)
    assert sorted(found) == ["idle", "paid", "sold"]
    sold = found["sold"]
    assert len(sold.sites) == 3
    assert [site.offset for site in sold.sites] == sorted(s.offset for s in sold.sites)
    assert [len(site.locations) for site in sold.sites] == [2, 2, 2]
    assert sold.sites[1].locations[0] is not None
    assert sold.sites[1].locations[0].kind is LocationKind.CONSTANT
    assert sold.sites[1].locations[0].value == -5
    assert sold.sites[2].locations[1] is None
    assert sold.signature == "shop:sold(arg0: s32, arg1: u64)"
    assert found["idle"].signature == "shop:idle()"
    assert found["paid"].sites[0].semaphore_offset > 0
    assert sold.role is ProbeRole.EVENT
    assert not sold.binary.is_image


def test_the_same_place_counts_once(open_bytes: OpenBytes) -> None:
    (probe,) = made(Elf(notes=site_note() * 3), open_bytes)
    assert len(probe.sites) == 1


def test_floats_without_a_note(open_bytes: OpenBytes) -> None:
    notes = site_note(arguments=b"8f@8(%rsp) 8f@%xmm0 1@%al")
    (probe,) = made(Elf(notes=notes), open_bytes)
    assert probe.signature == "shop:checkout(arg0: Float, arg1: u64, arg2: u8)"


def test_names_from_the_note(open_bytes: OpenBytes) -> None:
    operands = [(0, 1, b"id"), (200, 1, b"later"), (0, 99, b"odd"), (0, 3, b"too many")]
    file = Elf(
        notes=site_note(arguments=b"-8@%rdi 8@%rsi 8@%rdx"),
        image_notes=image_note(operands, role=1),
    )
    (probe,) = made(file, open_bytes)
    assert probe.binary.is_image
    assert probe.role is ProbeRole.SPAN_BEGIN
    assert [operand.name for operand in probe.operands] == ["id", "later", "odd"]
    assert probe.operands[1].role is OperandRole.UNKNOWN
    assert probe.operands[2].type is OperandType.UNKNOWN
    assert not probe.operands[2].signed


def test_fewer_names_than_operands(open_bytes: OpenBytes) -> None:
    file = Elf(notes=site_note(), image_notes=image_note([(0, 1, b"id")]))
    (probe,) = made(file, open_bytes)
    assert probe.signature == "shop:checkout(id: Integer, arg1: u64)"


def test_ruby_s_own_probes_have_names(open_bytes: OpenBytes) -> None:
    arguments = b"8@%rax 8@%rdx 8@%rcx -4@%edi"
    notes = site_note(b"cmethod__entry", arguments, provider=b"ruby")
    named = "ruby:cmethod__entry(class: String, method: String, file: String, "
    (probe,) = made(Elf(notes=notes), open_bytes, "/usr/lib/libruby-3.1.so.3.1")
    assert probe.signature == named + "line: Integer)"
    assert [operand.size for operand in probe.operands] == [8, 8, 8, 4]
    (probe,) = made(Elf(notes=notes), open_bytes, "/usr/lib/other.so")
    assert probe.operands[0].name == "arg0"
    (probe,) = made(Elf(notes=notes, image_notes=b""), open_bytes, "/memfd:ruby")
    assert probe.operands[0].name == "arg0"
    fewer = site_note(b"cmethod__entry", b"8@%rax", provider=b"ruby")
    (probe,) = made(Elf(notes=fewer), open_bytes, "/usr/bin/ruby3.1")
    assert probe.operands[0].name == "arg0"


def test_the_widest_site_gives_the_size(open_bytes: OpenBytes) -> None:
    one = site_note(b"array__create", b"-4@$0 8@%rax -4@4(%rsp)", provider=b"ruby")
    two = site_note(
        b"array__create", b"-8@%rbx 8@%rax -4@8(%rsp)", 0x1010, provider=b"ruby"
    )
    (probe,) = made(Elf(notes=one + two), open_bytes, "/opt/ruby/bin/ruby")
    assert [operand.size for operand in probe.operands] == [8, 8, 4]
    assert probe.operands[0].type is OperandType.INTEGER


def test_which_files_are_ruby() -> None:
    for path in (
        "/usr/bin/ruby2.7",
        "/x/libruby.so.3.3",
        "/x/libruby-3.1.so (deleted)",
    ):
        assert is_ruby_binary(path)
    for path in ("/usr/bin/python3", "/ruby/lib/x.so", "[vdso]", ""):
        assert not is_ruby_binary(path)


@pytest.mark.skipif(shutil.which("ruby") is None, reason="needs ruby")
def test_a_real_ruby() -> None:
    script = "puts 'ready'; $stdout.flush; $stdin.read"
    with running("ruby", "-e", script) as popen, Process(popen.pid) as process:
        scan = scan_probes(process)
        with StateReader(process) as reader:
            states = [reader.state(probe) for probe in scan.probes]
    assert scan.problems == []
    own = [probe for probe in scan.probes if probe.provider == "ruby"]
    if not own:
        pytest.skip("this Ruby has no probes of its own")
    for probe in own:
        expected = RUBY_PROBES[probe.name]
        names = [operand.name for operand in expected]
        assert [operand.name for operand in probe.operands] == names
        assert all(site.semaphore_offset for site in probe.sites)
        assert all(None not in site.locations for site in probe.sites)
    assert set(states) == {ProbeState(traced=False, semaphore=0)}


def poke(process: Process, probe: Probe, offset: int, data: bytes) -> None:
    """Write over the file's ``offset`` wherever ``process`` has mapped it."""
    fd = process.open("mem", os.O_RDWR)
    for mapping in mappings(process):
        address = mapping.address_of(offset)
        writable = mapping.is_writable or mapping.is_executable
        if mapping.key == probe.binary.key and address is not None and writable:
            assert os.pwrite(fd, data, address) == len(data)
    os.close(fd)


def probe_state(process: Process, probe: Probe) -> ProbeState:
    with StateReader(process) as reader:
        return reader.state(probe)


@pytest.mark.parametrize("site", [0, 1, 2])
def test_a_patched_site_is_traced(site: int, target: Path) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        probe = shop(process)["sold"]
        assert probe_state(process, probe) == ProbeState(False, None)
        poke(process, probe, probe.sites[site].offset, b"\xcc")
        assert probe_state(process, probe) == ProbeState(True, None)
        assert probe_state(process, shop(process)["paid"]).traced is False
        poke(process, probe, probe.sites[site].offset, b"\x90")
        assert probe_state(process, probe) == ProbeState(False, None)


def test_the_semaphore(target: Path) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        probe = shop(process)["paid"]
        assert probe_state(process, probe) == ProbeState(False, 0)
        count = struct.pack("<H", 3)
        poke(process, probe, probe.sites[0].semaphore_offset, count)
        assert probe_state(process, probe) == ProbeState(False, 3)


def test_a_state_that_cannot_be_read(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(target) as popen, Process(popen.pid) as process:
        probe = shop(process)["paid"]
        unknown = ProbeState(None, None)
        with StateReader(process) as reader:
            assert reader.can_read()
            elsewhere = Probe("a", "b", Binary(0, 1, "/x"), probe.sites)
            assert reader.state(elsewhere) == unknown
            popen.kill()
            popen.wait()
            assert not reader.can_read()
            assert reader.state(probe) == unknown
        assert probe_state(process, probe) == unknown

    def refuse(*_: object) -> bytes:
        raise NotPermitted("no")

    with running(target) as popen, Process(popen.pid) as process:
        monkeypatch.setattr(module.ProcessMemory, "read", refuse)
        assert probe_state(process, probe) == unknown


@pytest.mark.parametrize(
    ("site", "size"),
    [
        (b"\x90\xc3\xcc\xcc", 1),
        (b"\x0f\x1f\x44\x00\x00\x90", 5),
        (b"\x66\x2e\x0f\x1f\x84\x00\x00\x00\x00\x00", 10),
        (b"\x1f\x20\x03\xd5\xc0\x03\x5f\xd6", 4),
        (b"", 0),
    ],
)
def test_how_much_of_a_site_may_change(site: bytes, size: int) -> None:
    assert len(module._first_instruction(site)) == size


def test_unreadable_files_are_reported(tmp_path: Path, target: Path) -> None:
    data = bytearray(target.read_bytes())
    at = data.index(b"stapsdt\0")
    data[at - 12 + 4 : at - 12 + 8] = b"\xff\xff\xff\x7f"
    path = tmp_path / "lying"
    path.write_bytes(data)
    path.chmod(0o755)
    with running(path) as popen, Process(popen.pid) as process:
        scan = scan_probes(process)
    assert [p for p in scan.probes if p.provider == "shop"] == []
    (problem,) = (p for p in scan.problems if p.path == str(path))
    assert problem.text == "1 malformed notes"


def test_too_many_probes_are_cut(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_PROBES", 2)
    with running(target) as popen, Process(popen.pid) as process:
        scan = scan_probes(process)
    assert len(scan.probes) == 2
    assert scan.problems[-1].text == "more than 2 probes"


def test_the_cache_reads_only_what_changed(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = module.probes_of_file

    def count(elf: ElfFile, binary: Binary) -> tuple[list[Probe], list[module.Problem]]:
        read.append(binary.path)
        return original(elf, binary)

    monkeypatch.setattr(module, "probes_of_file", count)
    cache = ProbeCache()
    with running(target) as one, running(target) as other:
        with Process(one.pid) as process:
            first = find_probes(process, cache)
        with Process(other.pid) as process:
            assert find_probes(process, cache) == first
    assert read.count(str(target)) == 1


@pytest.fixture(scope="module")
def image_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = LIBRARY / "libstapsdt.a"
    if not archive.exists():
        pytest.skip("needs ext/libstapsdt built")
    output = tmp_path_factory.mktemp("image") / "image_target"
    flags = (f"-I{LIBRARY}", str(archive), "-ldl", "-lpthread")
    return compile_c(HERE / "image_target.c", output, *flags)


EVENT = "(id: Integer, sku: String, arg2: Float, paid: bool)"


def test_the_gem_s_images(image_target: Path) -> None:
    with running(image_target, "2") as popen, Process(popen.pid) as process:
        found = shop(process)
        signatures = [probe.signature for probe in found.values()]
        assert signatures == [
            "shop:checkout__end(duration_ns: Integer, outcome: Integer, id: Integer)",
            f"shop:event0{EVENT}",
            f"shop:event1{EVENT}",
        ]
        end = found["checkout__end"]
        assert end.span_name == "checkout"
        assert [int(operand.role) for operand in end.operands] == [1, 2, 0]
        for probe in found.values():
            assert probe.binary.is_image
            assert probe.sites[0].semaphore_offset == 0
            assert None not in probe.sites[0].locations
            assert probe_state(process, probe) == ProbeState(False, None)
        poke(process, end, end.sites[0].offset, b"\xcc")
        assert probe_state(process, end).traced
        assert not probe_state(process, found["event1"]).traced


def test_new_probes_show_in_the_signature(image_target: Path) -> None:
    cache = ProbeCache()
    with running(image_target, "1") as popen, Process(popen.pid) as process:
        first = find_probes(process, cache)
        binary = next(probe.binary for probe in first if probe.binary.is_image)
        with open_binary(process, binary) as opened:
            before = image_signature(opened.fd)
            define(popen, 5)
            assert image_signature(opened.fd) > before
        assert len(find_probes(process, cache)) == len(first) + 5


@pytest.mark.parametrize("turn", range(100 if os.environ.get("RBTRACE_SOAK") else 1))
def test_names_are_complete_while_probes_are_defined(
    turn: int, image_target: Path
) -> None:
    cache = ProbeCache()
    with running(image_target, "0") as popen, Process(popen.pid) as process:
        assert popen.stdin is not None
        popen.stdin.write("1000\n" * 3)
        popen.stdin.flush()
        for look in range(20):
            found = find_probes(process, cache if look % 2 else None)
            wrong = [
                probe.signature
                for probe in found
                if probe.name.startswith("event")
                and not probe.signature.endswith(EVENT)
            ]
            assert wrong == []


def define(popen: subprocess.Popen[str], count: int) -> None:
    assert popen.stdin is not None
    assert popen.stdout is not None
    popen.stdin.write(f"{count}\n")
    popen.stdin.flush()
    assert popen.stdout.readline() == "done\n"


@pytest.mark.skipif(
    not is_root() or shutil.which("bpftrace") is None, reason="needs root and bpftrace"
)
@pytest.mark.parametrize("kind", ["image", "semaphore"])
def test_a_real_tracer_is_seen(kind: str, request: pytest.FixtureRequest) -> None:
    """Another tool attaches. When it is killed, nothing of it remains."""
    image = kind == "image"
    program = request.getfixturevalue("image_target" if image else "target")
    name = "event1" if image else "paid"
    with running(program, "2") as popen, Process(popen.pid) as process:
        probe = shop(process)[name]
        script = f"usdt:*:shop:{name} {{ exit(); }}"
        with subprocess.Popen(
            ["bpftrace", "-p", str(popen.pid), "-e", script],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as tracer:
            try:
                traced = ProbeState(True, None if image else 1)

                def is_attached() -> bool:
                    assert tracer.poll() is None
                    return probe_state(process, probe) == traced

                assert comes_true(is_attached, pause=0.01)
            finally:
                tracer.kill()
        assert comes_true(
            lambda: probe_state(process, probe).traced is False, pause=0.01
        )
        others = [p for p in shop(process).values() if p.name != name]
        assert all(probe_state(process, other).traced is False for other in others)
