from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linux_targets import compile_c

from rbtrace_py.errors import NotPermitted
from rbtrace_py.linux import btf as module
from rbtrace_py.linux.btf import VMLINUX, Btf, NoBtf
from rbtrace_py.linux.elf.reader import ElfFile

SOURCE = """
#include <stddef.h>
#include <stdio.h>
typedef unsigned long word;
struct leaf { char c; const volatile word value; };
enum colour { RED, GREEN };
struct forward;
struct tree {
  char a;
  union { int number; struct { short low; short high; }; };
  struct leaf leaf;
  const struct leaf leaves[3];
  struct tree *next;
  struct forward *unknown;
  enum colour colour;
  int (*call)(int, char, ...);
  unsigned bits : 3;
  unsigned more : 8;
  unsigned whole : 16;
  union { struct { union { word deep; }; }; };
};
struct tree tree;
#define SHOW(member) \\
  printf(#member " %zu %zu\\n", offsetof(struct tree, member), sizeof tree.member)
int main(void) {
  SHOW(a); SHOW(number); SHOW(low); SHOW(high); SHOW(leaf); SHOW(leaf.value);
  SHOW(leaves); SHOW(next); SHOW(colour); SHOW(call); SHOW(deep); SHOW(unknown);
  printf("%zu\\n", sizeof(struct tree));
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[str]]:
    """BTF made by gcc, and the offsets that the program prints."""
    directory = tmp_path_factory.mktemp("btf")
    source = directory / "tree.c"
    source.write_text(SOURCE)
    program = compile_c(source, directory / "tree", "-gbtf")
    shown = subprocess.run([program], capture_output=True, text=True, check=True)
    with program.open("rb") as file:
        elf = ElfFile(file.fileno())
        data = elf.data(elf.named(b".BTF")[0], 1 << 20)
    return data, shown.stdout.splitlines()


def test_offsets_as_the_compiler_has_them(compiled: tuple[bytes, list[str]]) -> None:
    btf = Btf(compiled[0])
    lines = [line.split() for line in compiled[1]]
    for name, offset, size in lines[:-1]:
        member = btf.member(f"tree.{name}")
        assert member is not None, name
        assert (member.offset, member.size) == (int(offset), int(size)), name
    assert btf.size("tree") == int(lines[-1][0])


def test_paths_without_an_offset(compiled: tuple[bytes, list[str]]) -> None:
    btf = Btf(compiled[0])
    assert btf.offsets(
        ["tree.none", "none.a", "tree", "", ".", "tree.next.a", "tree.a.a", "tree.more"]
    ) == dict.fromkeys(
        ["tree.none", "none.a", "tree", "", ".", "tree.next.a", "tree.a.a", "tree.more"]
    )
    assert btf.size("none") is None
    assert btf.size("colour") is None


def test_members_after_each_other(compiled: tuple[bytes, list[str]]) -> None:
    """A name that is another's end is not taken for it."""
    assert Btf(compiled[0]).offset("tree.umber") is None
    assert Btf(compiled[0]).offset("ree.a") is None


@pytest.mark.skipif(not os.path.exists(VMLINUX), reason="this kernel has no BTF")
def test_the_kernel_s() -> None:
    started = time.process_time()
    btf = Btf.load()
    assert time.process_time() - started < 1
    offsets = btf.offsets(["task_struct.pid", "task_struct.tgid", "list_head.next"])
    assert offsets["list_head.next"] == 0
    pid, tgid = offsets["task_struct.pid"], offsets["task_struct.tgid"]
    assert pid is not None
    assert tgid == pid + 4
    comm = btf.member("task_struct.comm")
    assert comm is not None
    assert comm.size == 16
    nested = btf.offset("task_struct.se")
    inner = btf.offset("sched_entity.vruntime")
    assert nested is not None
    assert inner is not None
    assert btf.offset("task_struct.se.vruntime") == nested + inner


def test_no_btf(tmp_path: Path) -> None:
    with pytest.raises(NoBtf) as caught:
        Btf.load(str(tmp_path / "none"))
    assert "CONFIG_DEBUG_INFO_BTF" in caught.value.hint
    with pytest.raises(NotPermitted):
        Btf.load(str(tmp_path))


def test_truncated(compiled: tuple[bytes, list[str]]) -> None:
    data = compiled[0]
    for length in range(0, len(data), 7):
        with pytest.raises(NoBtf):
            Btf(data[:length])
    with pytest.raises(NoBtf, match="wrong magic number"):
        Btf(data[1:])


def blob(types: bytes, strings: bytes = b"\0loop\0") -> bytes:
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), 6)
    return head + types + strings


def test_branches_of_nameless_members_end() -> None:
    """Each of two nameless members is the struct itself: 2 to the depth ways."""
    members = struct.pack("<IIIIII", 0, 1, 0, 0, 1, 0)
    types = struct.pack("<III", 1, 4 << 24 | 2, 8) + members
    assert Btf(blob(types)).offset("loop.x") is None


def test_circles_end() -> None:
    struct_loop = struct.pack("<IIIIII", 1, 4 << 24 | 1, 8, 0, 1, 0)
    assert Btf(blob(struct_loop)).offset("loop.x") is None
    typedef = struct.pack("<III", 0, 8 << 24, 2)
    holder = struct.pack("<IIIIII", 1, 4 << 24 | 1, 8, 1, 1, 0)
    member = Btf(blob(typedef + holder)).member("loop.loop")
    assert member is not None
    typedef_loop = struct.pack("<III", 0, 8 << 24, 1)
    member = Btf(blob(typedef_loop + holder)).member("loop.loop")
    assert member is not None
    assert member.size is None


@given(st.binary(max_size=400).filter(lambda data: len(data) % 4 == 0))
def test_random_types_never_crash(types: bytes) -> None:
    try:
        btf = Btf(blob(types))
    except NoBtf:
        return
    btf.member("loop.loop")
    btf.member("loop.x.y")


@given(data=st.data())
def test_changed_types_never_crash(data: st.DataObject) -> None:
    changed = bytearray(struct.pack("<IIIIII", 1, 4 << 24 | 1, 8, 1, 1, 0) * 3)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(NoBtf):
        Btf(blob(bytes(changed))).member("loop.loop.loop")


def test_numbers_of_kinds() -> None:
    """btf.h's BTF_KIND_*: those with words of their own after the head."""
    assert set(module._EXTRA_WORDS) == {1, 3, 14, 17}
    assert set(module._MEMBER_WORDS) == {4, 5, 6, 13, 15, 19}
