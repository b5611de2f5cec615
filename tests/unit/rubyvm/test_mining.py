"""Offsets read from the code of a Ruby, as compilers write it, and malformed."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rbtrace_py.linux.elf.reader import PF_X, ElfFile
from rbtrace_py.linux.elf.symbols import Symbol, SymbolTable
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.attach import attach
from rbtrace_py.rubyvm.detect import find_ruby
from rbtrace_py.rubyvm.layouts import layout_from, table_for
from rbtrace_py.rubyvm.mining import addresses_in, mine, pointer_in
from rubies import each_ruby

OFFSETS = replace(
    layout_from(table_for("3.2.0"), "3.2.0").offsets,
    vm_objspace=1128,
    objspace_flags=16,
    objspace_gc_bit=5,
    fiber_prev=520,
    fiber_status=536,
)
"""As ``getters.c`` has them."""
MINED = {
    "vm_objspace",
    "objspace_flags",
    "objspace_gc_bit",
    "fiber_prev",
    "fiber_status",
}


class Compiled:
    """A library that stands for Ruby's, as if it were loaded at 0x10000."""

    bias = 0x10000

    def __init__(self, fd: int) -> None:
        self._elf = ElfFile(fd)
        self.symbols = SymbolTable(self._elf)

    def code(self, address: int, size: int) -> bytes:
        offset = self._elf.file_offset(address - self.bias, PF_X)
        return b"" if offset is None else self._elf.read(offset, size)


@contextmanager
def compiled(folder: Path, *flags: str) -> Iterator[Any]:
    library = folder / "getters.so"
    source = Path(__file__).with_name("getters.c")
    words = ["gcc", "-shared", "-fPIC", *flags, "-o", str(library), str(source)]
    subprocess.run(words, check=True)
    with library.open("rb") as file:
        yield Compiled(file.fileno())


@pytest.mark.parametrize("flags", ["-DHIDDEN", "-fcf-protection=full", "-fno-plt"])
@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "-Os"])
def test_what_compilers_make(level: str, flags: str, tmp_path: Path) -> None:
    with compiled(tmp_path, level, flags) as ruby:
        assert mine(ruby, OFFSETS).agreed == MINED
        other = replace(OFFSETS, fiber_prev=680, fiber_status=696, vm_objspace=1136)
        assert mine(ruby, other).offered == {
            "vm_objspace": 1128,
            "fiber_prev": 520,
            "fiber_status": 536,
        }
        pointer = ruby.symbols.find("ruby_current_vm_ptr")
        found = pointer_in(ruby, "ruby_vm_at_exit")
        assert found is not None
        assert found[1] == (flags != "-DHIDDEN")
        assert found[1] or found[0] == pointer.address + ruby.bias
        table = ruby.symbols.find("postponed_job_queue").address + ruby.bias
        assert table in addresses_in(ruby, "rb_postponed_job_preregister")


def test_unoptimized_code_offers_nothing_wrong(tmp_path: Path) -> None:
    with compiled(tmp_path, "-O0") as ruby:
        assert mine(ruby, OFFSETS).offered == {}


@dataclass
class Hostile:
    """Functions with random bytes as their code."""

    data: bytes
    size: int
    bias: int = 0

    @property
    def symbols(self) -> Hostile:
        return self

    def find(self, name: str) -> Symbol:
        return Symbol(name, 0x1000, self.size)

    def code(self, address: int, size: int) -> bytes:
        return self.data[:size]


def test_any_bytes() -> None:
    """Hostile code causes at most a wrong answer."""
    chance = random.Random(1)
    opcodes = b"\x48\x8b\x0f\xb6\x05\x80\x40\xc0\xe8"
    for _ in range(2_000):
        data = bytes(chance.choice(opcodes) for _ in range(512))
        ruby: Any = Hostile(data, chance.choice([0, 1, 512, 1 << 62]))
        assert set(mine(ruby, OFFSETS).offered) <= MINED
        pointer_in(ruby, "ruby_vm_at_exit")
        addresses_in(ruby, "rb_postponed_job_preregister")


@each_ruby
def test_each_ruby_says_what_its_memory_bears_out(ruby: Process) -> None:
    with find_ruby(ruby) as found:
        assert mine(found, attach(ruby).layout.offsets).agreed == MINED
        # In a differently configured Ruby, a jmp_buf moves the members of a fiber.
        table = layout_from(table_for(found.version.text), found.version.text)
        offered = mine(found, table.offsets).offered
        assert offered.keys() <= {"fiber_status", "fiber_prev"}
