from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.linux.maps import (
    Mapping,
    executable_signature,
    mappings,
    parse,
    parse_line,
)
from rbtrace_py.linux.process import Process

LINE = b"7f9fa14ae000-7f9fa1519000 r-xp 00002000 fe:00 326694      "


def parsed(line: bytes) -> Mapping:
    mapping = parse_line(line)
    assert mapping is not None
    return mapping


def test_a_line() -> None:
    mapping = parsed(LINE + b"/usr/lib/libx.so.1")
    assert mapping == Mapping(
        start=0x7F9FA14AE000,
        end=0x7F9FA1519000,
        perms="r-xp",
        offset=0x2000,
        device=os.makedev(0xFE, 0),
        inode=326694,
        path=b"/usr/lib/libx.so.1",
    )
    assert mapping.is_executable
    assert not mapping.is_writable
    assert mapping.is_file
    assert mapping.address_of(0x2010) == 0x7F9FA14AE010
    assert mapping.address_of(0x1FFF) is None
    assert mapping.address_of(0x2000 + 0x6B000) is None


def test_odd_paths() -> None:
    assert parsed(LINE + b"/a b  c ").path == b"/a b  c "
    deleted = parsed(LINE + b"/a\\012b (deleted)")
    assert deleted.is_deleted
    assert deleted.raw_path == b"/a\nb"
    assert deleted.shown_path == "/a\\x5c012b (deleted)"
    assert parsed(LINE + b"/x\x1b[0m\xff").shown_path == "/x\\x1b[0m\\xff"
    assert parsed(b"1000-2000 rw-p 00000000 00:00 0 ").path == b""
    assert not parsed(b"1000-2000 rw-p 0 00:00 0   [heap]").is_file


def test_malformed_lines() -> None:
    text = b"\n\nnonsense\n1-2-3 r-xp 0 00:00 1 /x\n1000-2000 r-xp zz 00:00 1 /x\n"
    assert list(parse(text)) == []


@given(st.binary(max_size=300))
def test_never_raises(data: bytes) -> None:
    list(parse(data))


def test_ours() -> None:
    with Process(os.getpid()) as process:
        found = mappings(process)
        lines = Path("/proc/self/maps").read_text().splitlines()
    assert abs(len(found) - len(lines)) < 20
    assert any(mapping.is_executable and mapping.is_file for mapping in found)
    assert [mapping.start for mapping in found] == sorted(m.start for m in found)
    assert all(re.fullmatch("[r-][w-][x-][ps]", mapping.perms) for mapping in found)


def test_signature_tells_of_new_code(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.write_bytes(bytes(mmap.PAGESIZE))
    with Process(os.getpid()) as process, code.open("rb") as file:
        before = executable_signature(process)
        with mmap.mmap(-1, mmap.PAGESIZE):
            assert executable_signature(process) == before
        mapped = mmap.mmap(
            file.fileno(),
            mmap.PAGESIZE,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_EXEC,
        )
        assert executable_signature(process) != before
        mapped.close()
        assert executable_signature(process) == before
