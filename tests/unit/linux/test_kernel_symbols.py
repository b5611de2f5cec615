"""Names of kernel functions, compared with /proc/kallsyms and a sleeping thread."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import comes_true
from rbtrace_py.linux.kernel_frames import KernelSymbols, sleeping_stack
from rbtrace_py.linux.process import Process

pytestmark = pytest.mark.usefixtures("root")


def listed() -> dict[str, tuple[int, str]]:
    """Addresses and kinds of the kernel's own symbols."""
    lines = Path("/proc/kallsyms").read_text().splitlines()
    rows = (line.split() for line in lines if "[" not in line)
    return {name: (int(address, 16), kind) for address, kind, name in rows}


@contextmanager
def asleep() -> Iterator[Process]:
    """A process that waits in read."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        process = Process(child.pid)
        comm = Path(f"/proc/{child.pid}/comm")
        wchan = Path(f"/proc/{child.pid}/wchan")
        assert comes_true(
            lambda: comm.read_text() == "cat\n" and "read" in wchan.read_text()
        )
        yield process
        assert child.stdin is not None
        child.stdin.close()


def test_functions() -> None:
    symbols, all_listed = KernelSymbols(), listed()
    for name in ("vfs_read", "vfs_write", "schedule", "do_exit"):
        address, kind = all_listed[name]
        assert kind in "Tt"
        assert symbols.name(address) == name
        assert symbols.name(address + 1) == name
        assert symbols.name(address - 1) != name


def test_addresses_outside_of_functions() -> None:
    symbols, all_listed = KernelSymbols(), listed()
    address, kind = all_listed["__start_rodata"]
    assert kind in "DdRr"
    assert symbols.name(address + 8) is None
    assert symbols.name(0x1000) is None
    assert symbols.name(2**64 - 1) is None
    assert symbols.name(2**64 - 2**20) is None


def test_several_names_of_one_place() -> None:
    """The kernel itself shows the first of its names."""
    lines = Path("/proc/kallsyms").read_text().splitlines()
    names: dict[int, list[str]] = {}
    for address, kind, name, *_ in map(str.split, lines):
        names.setdefault(int(address, 16), []).append(name if kind in "tT" else "")
    address, (expected, *_) = next(
        (place, found)
        for place, found in names.items()
        if len(set(found)) > 1 and all(found)
    )
    assert KernelSymbols().name(address) == expected


def test_where_a_thread_sleeps() -> None:
    """The called functions have other names in other kernels."""
    with asleep() as process:
        names = sleeping_stack(process, process.pid)
        assert names[-1].startswith(("entry_SYSCALL_64", "do_syscall_64"))
        assert "vfs_read" in names
        assert "schedule" not in names
        own = set(names) - listed().keys()
        assert own == set(), names
    assert sleeping_stack(process, process.pid) == []
