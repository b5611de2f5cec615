"""Instructions are decoded as objdump has them, or not at all."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path

import pytest

from rbtrace_py.linux.elf import ElfFile
from rbtrace_py.linux.symbols import SymbolTable
from rbtrace_py.rubyvm.flow import Chain, follow
from rbtrace_py.rubyvm.mining import GETTERS
from rbtrace_py.rubyvm.x86 import LONGEST, RAX, RBP, Op, Place, decode
from rubies import DIRECTORY, EACH, HERE, need, own_ruby

LINE = re.compile(r"^\s+([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t?(.*)$", re.MULTILINE)


LIBRARY = "usr/lib/x86_64-linux-gnu/libruby-*.so.*.*.*"


def library_of(name: str) -> Path:
    if name == HERE:
        return own_ruby()[1]
    need(name)
    return next((DIRECTORY / name).glob(LIBRARY))


@pytest.mark.parametrize("name", EACH)
def test_lengths_and_targets(name: str) -> None:
    library, decoded = library_of(name), 0
    with open(library, "rb") as file:
        table = SymbolTable(ElfFile(file.fileno()))
        for getter in {g.function for g in GETTERS}:
            symbol = table.find(getter)
            if symbol is not None:
                decoded += check(library, symbol.address, symbol.size)
    # 350 or so in Debian's 3.1.
    assert decoded > 200


def check(library: Path, start: int, size: int) -> int:
    """Compare with objdump; how many instructions were decoded."""
    words = [
        "objdump",
        "-dw",
        f"--start-address={start}",
        f"--stop-address={start + size}",
    ]
    text = subprocess.run([*words, library], capture_output=True, text=True).stdout
    decoded = 0
    for address, raw, what in LINE.findall(text):
        code = bytes.fromhex(raw)
        found = decode(code + b"\x90" * LONGEST, int(address, 16))
        if found is None:
            continue
        decoded += 1
        assert found.size == len(code), what
        if found.target is not None:
            assert f"{found.target:x}" in what.split()[1:], what
        if found.op is Op.RETURN:
            assert what.startswith("ret")
    assert decoded
    return decoded


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("488b4010", (Op.LOAD, RAX, Place(RAX, 16), 8)),
        ("8b4058", (Op.LOAD, RAX, Place(RAX, 88), 4)),
        ("486340 58", (Op.LOAD, RAX, Place(RAX, 88), 4)),
        ("0fb64010", (Op.LOAD, RAX, Place(RAX, 16), 1)),
        ("488b2dbfa21f00", (Op.LOAD, RBP, Place(None, 0x1000 + 7 + 0x1FA2BF), 8)),
        ("488b042500106000", (Op.LOAD, RAX, Place(None, 0x601000), 8)),
        ("488d057d2b3700", (Op.ADDRESS, RAX, Place(None, 0x1000 + 7 + 0x372B7D), 8)),
    ],
)
def test_operands(code: str, expected: tuple[object, ...]) -> None:
    found = decode(bytes.fromhex(code), 0x1000)
    assert found is not None
    assert (found.op, found.register, found.place, found.width) == expected


@pytest.mark.parametrize("code", ["", "48", "488b", "0f0b", "cc", "c5f877", "f4", "ff"])
def test_what_is_not_known(code: str) -> None:
    assert decode(bytes.fromhex(code), 0) is None


def test_any_bytes() -> None:
    """Hostile code costs nothing but an answer that is wrong."""
    chance = random.Random(1)
    for _ in range(20_000):
        data = chance.randbytes(24)
        found = decode(data, 0)
        assert found is None or 0 < found.size <= LONGEST
    for _ in range(200):
        data = chance.randbytes(512)
        assert len(list(follow(lambda at, size, d=data: d, 0x1000))) < 200


def test_a_loop_ends() -> None:
    assert list(follow(lambda at, size: b"\xeb\xfe", 0x1000)) == []


def test_both_ways_of_a_branch() -> None:
    # test rdi,rdi; je +4; mov 8(rdi),rax; ret; mov 16(rdi),rax; ret
    code = bytes.fromhex("4885ff7405488b4708c3488b4710c3")
    found = set(follow(lambda at, size: code, 0))
    assert found == {Chain("argument", (8,)), Chain("argument", (16,))}
