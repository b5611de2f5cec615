"""A hostile Ruby VM: every reader of a VM ends, in bounded time and memory.

It ends with a result or with our own error. Each image (vm_images.py) goes through all
readers of a VM: checks, threads, stacks, names, lines, and fibers.
"""

from __future__ import annotations

import random
import resource
import signal
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import vm_images
from coremaker import Core, files_note, program_note, thread_note
from vm_images import NAMES, Image, Recorded, damaged

from processes import is_soak, times
from rbtrace_py.errors import RbtraceError
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.dump import dump_lines
from rbtrace_py.report.terminal.waits import wait_text
from rbtrace_py.rubyvm import checks, fibers, frames, threads, unwinder, vm
from rbtrace_py.rubyvm import locals as locals_
from rbtrace_py.rubyvm.inspection import LONGEST
from rbtrace_py.rubyvm.roots import old_symbols_by_shape, symbols_by_shape
from rbtrace_py.rubyvm.vm import RubyVM
from rbtrace_py.session.stacks.cores import CoreOptions, dump_core
from rbtrace_py.session.stacks.deadlocks import deadlocks
from rbtrace_py.session.stacks.dump import dumped, read_stacks
from rbtrace_py.session.stacks.ruby_process import ruby_thread
from rbtrace_py.session.stacks.waits import Waits

IMAGES = 100_000 if is_soak() else 500
CORES = 5_000
AT_ONCE, CORES_AT_ONCE = 1_000 if is_soak() else 100, 250
"""Images and cores per test."""


@pytest.fixture(scope="module")
def recordings() -> dict[str, Recorded]:
    return {name: vm_images.recorded(name) for name in NAMES}


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    """A hang ends the test, as does the use of a gigabyte more than before."""
    signal.alarm(1200)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.alarm(0)


@pytest.fixture
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the same bounds, so that cases that reach them are as fast as others."""
    monkeypatch.setattr(threads, "MOST_THREADS", 24)
    monkeypatch.setattr(threads, "MOST_RACTORS", 8)
    monkeypatch.setattr(fibers, "_MOST_RESUMED", 32)
    monkeypatch.setattr(fibers, "_MOST_CANDIDATES", 32)
    monkeypatch.setattr(fibers, "MOST_FIBERS", 16)
    monkeypatch.setattr(unwinder, "MOST_FRAMES", 200)
    for module in (unwinder, checks):
        monkeypatch.setattr(module, "LARGEST_STACK", 1 << 21)
    monkeypatch.setattr(checks, "_LONGEST_LIST", 64)
    monkeypatch.setattr(vm, "_ATTEMPTS", 3)
    monkeypatch.setattr(locals_, "MOST_FRAMES", 8)
    monkeypatch.setattr(locals_, "MOST_LOCALS", 4)
    monkeypatch.setattr(vm, "_MOST_KEPT", 1 << 16)
    monkeypatch.setattr(frames, "_MOST_TEXT", 1 << 14)


def use(source: Recorded, image: Image) -> None:
    """Run everything that reads a VM; raises RbtraceError."""
    checks.contradiction(image, source.layout, checks.Roots(source.vm))
    regions = [(start, len(data)) for start, data in image.runs]
    symbols_by_shape(image, regions[-8:])
    old_symbols_by_shape(image, regions[:8])
    found = RubyVM(image, source.layout, source.vm, source.symbols, zjit=source.zjit)
    for thread in found.threads()[:8]:
        found.sample(thread)
    found.revalidate()
    stacks = read_stacks(
        found, lambda: fibers.Fibers(found, source.symbols, regions), True
    )
    for _, walked in stacks.threads:
        if walked is not None:
            assert all(is_fit_to_show(frame) for frame in walked.stack.frames)
    stacks.read_locals(found.values)
    for stack in stacks.locals.values():
        for local in (one for frame in stack for one in frame):
            assert f"{local.name}{local.value}".isprintable()
            assert len(local.value) <= LONGEST + 1
    known = {one.address: ruby_thread(1, one.tid, one) for one, _ in stacks.threads}
    waits = Waits(found.values, stacks.seen(), known, None)
    threads = [dumped(stacks, one, walked, waits) for one, walked in stacks.threads]
    for one in threads:
        text = "" if one.wait is None else wait_text(one.wait)
        assert text.isprintable()
        assert len(text) < 40_000
    deadlocks(threads)


def is_fit_to_show(frame: object) -> bool:
    text = (frame.name, frame.label, frame.path)  # type: ignore[attr-defined]
    return all(one.isprintable() and len(one) < 40_000 for one in text)


@pytest.mark.parametrize("number", range(IMAGES // AT_ONCE))
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("small_bounds")
def test_damaged(number: int, recordings: dict[str, Recorded]) -> None:
    for seed in range(number * AT_ONCE, (number + 1) * AT_ONCE):
        source = recordings[NAMES[seed % len(NAMES)]]
        image = damaged(source, seed)
        try:
            use(source, image)
        except RbtraceError:
            pass
        except Exception as error:
            raise AssertionError(f"image {seed}") from error
        assert image.reads < 100_000, seed
        assert image.bytes < 1 << 30, seed


@pytest.mark.parametrize("seed", range(times(400)))
@pytest.mark.timeout(300)
def test_bounds_as_they_are(
    seed: int, recordings: dict[str, Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time and memory for one sample of all threads in endless images."""
    monkeypatch.setattr(frames, "MOST_SECONDS", 0.5)
    source = recordings[NAMES[seed % len(NAMES)]]
    chance = random.Random(seed)
    image = damaged(source, chance.randrange(1 << 30))
    while image.elsewhere is None:
        image.elsewhere = vm_images.endless(chance.randrange(1 << 30))
    found = RubyVM(image, source.layout, source.vm, source.symbols, zjit=source.zjit)
    tracemalloc.start()
    try:
        listed = found.threads()
        assert len(listed) <= threads.MOST_THREADS
        begin = time.process_time()
        found.sample_all(listed)
        found.revalidate()
        assert time.process_time() - begin < 10
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    except RbtraceError:
        pass
    finally:
        tracemalloc.stop()


# --------------------------------------------------------------- lies on purpose


def put(image: Image, address: int, *words: int) -> None:
    """Write words into an image, where there was nothing before."""
    data = struct.pack(f"={len(words)}Q", *words)
    image.runs = sorted([*image.runs, (address, bytearray(data))])
    image.starts = [start for start, _ in image.runs]


@pytest.fixture
def plain(recordings: dict[str, Recorded]) -> tuple[Recorded, Image]:
    source = recordings["3.4"]
    return source, Image(source.runs)


def test_a_class_that_is_attached_to_its_own_object(
    plain: tuple[Recorded, Image],
) -> None:
    """A singleton class of an object whose class is that class, and so on for ever."""
    source, image = plain
    layout = source.layout
    klass, thing = 0x7000_0000_0000, 0x7000_0001_0000
    words = [0] * 64
    words[0] = 0x02 | 1 << layout.traits.singleton_bit
    words[2] = klass
    assert layout.offsets.class_attached is not None
    words[layout.offsets.class_attached // 8] = thing
    put(image, klass, *words)
    put(image, thing, 0x01, klass, 0, 0, 0)
    names = RubyVM(image, layout, source.vm, source.symbols)._tree._names
    assert names.class_name(klass)[0].startswith("#<Class:#<#<Class:")
    assert len(names.class_prefix(klass)[0]) < 2000


# --------------------------------------------------------------------- core files


def core_of(source: Recorded, image: Image) -> bytes:
    """A core file of an image, its threads and program."""
    notes = program_note(7, b"ruby", b"ruby app.rb") + thread_note(7)
    notes += files_note([(0x1000, 0x2000, 0, b"/usr/bin/ruby3.1")])
    pointer = source.vm.to_bytes(8, "little")
    loads = [(start, bytes(data), len(data), 6) for start, data in image.runs]
    return Core(notes, [(0x10000, pointer, 8, 6), *loads]).build()


def options(source: Recorded) -> CoreOptions:
    symbols = {"ruby_current_vm_ptr": 0x10000, "ruby_global_symbols": source.symbols}
    if source.zjit:
        symbols["rb_zjit_entry"] = source.zjit
    return CoreOptions(None, source.layout.version, symbols, True)


@pytest.mark.parametrize("name", NAMES)
def test_a_core_of_what_was_recorded(
    name: str, recordings: dict[str, Recorded], tmp_path: Path
) -> None:
    source = recordings[name]
    path = tmp_path / "core"
    path.write_bytes(core_of(source, Image(source.runs)))
    dumped = dump_core(str(path), options(source))
    found = {one.thread.name: one for one in dumped.threads}
    for thread, stack in source.stacks.items():
        walked = found[thread].stack
        assert walked is not None
        assert [f.line for f in reversed(walked.frames)] == [row[1] for row in stack]


@pytest.mark.parametrize("number", range(times(CORES) // CORES_AT_ONCE))
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("small_bounds")
def test_damaged_cores(
    number: int, recordings: dict[str, Recorded], tmp_path: Path
) -> None:
    """Headers and notes that lie, bodies that do, and files that were cut."""
    path = tmp_path / "core"
    for seed in range(number * CORES_AT_ONCE, (number + 1) * CORES_AT_ONCE):
        chance = random.Random(seed)
        source = recordings[NAMES[seed % len(NAMES)]]
        is_sound = chance.random() < 0.5
        image = Image(source.runs) if is_sound else damaged(source, seed)
        data = bytearray(core_of(source, image))
        for _ in range(chance.choice((0, 1, 4, 40)) if not is_sound else 4):
            at = chance.randrange(64 + 56 * 40)
            value = chance.choice((0, 1, 0xFF, (1 << 64) - 1, chance.getrandbits(64)))
            size = chance.choice((1, 2, 4, 8))
            data[at : at + size] = value.to_bytes(8, "little")[:size]
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            dumped = dump_core(str(path), options(source))
            assert all(map(str.isprintable, dump_lines(dumped, Style())))
        except RbtraceError:
            pass
        except Exception as error:
            raise AssertionError(f"core {seed}") from error
