"""Functions and tracepoints by name."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from rbtrace_py.errors import BpfError, NoSuchProbe
from rbtrace_py.linux import tracepoints
from rbtrace_py.linux.functions import files_named, functions_named
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.tracepoints import RecordField, fields_of, read_tracepoint

FORMAT = """name: sys_enter_openat
ID: 700
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;
\tfield:const char * filename;\toffset:24;\tsize:8;\tsigned:0;
\tfield:umode_t mode;\toffset:40;\tsize:8;\tsigned:0;
\tfield:char comm[8];\toffset:48;\tsize:8;\tsigned:0;
\tfield:__data_loc char[] name;\toffset:56;\tsize:4;\tsigned:0;
\tfield:u8 flags[3];\toffset:60;\tsize:3;\tsigned:0;

print fmt: "dfd: 0x%08lx", ((unsigned long)(REC->dfd))
"""


def test_fields_are_integers() -> None:
    assert fields_of(FORMAT) == {
        "__syscall_nr": RecordField(8, 4, True),
        "mode": RecordField(40, 8, False),
    }


def test_a_tracepoint_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "events" / "syscalls" / "sys_enter_openat"
    folder.mkdir(parents=True)
    (folder / "id").write_text("700\n")
    (folder / "format").write_text(FORMAT)
    monkeypatch.setattr(tracepoints, "tracefs", lambda: str(tmp_path))
    found = tracepoints.read_system_call("openat")
    assert (found.number, list(found.fields)) == (700, ["__syscall_nr", "mode"])
    assert read_tracepoint("syscalls", "sys_enter_openat") == found
    with pytest.raises(NoSuchProbe, match="no tracepoint category syscall") as error:
        read_tracepoint("syscall", "sys_enter_openat")
    assert error.value.hint == "Did you mean syscalls?"
    with pytest.raises(NoSuchProbe, match="no tracepoint \\.\\./syscalls"):
        read_tracepoint("syscalls", "../syscalls")


def test_without_tracefs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracepoints, "tracefs", lambda: None)
    with pytest.raises(BpfError, match="tracefs is not mounted"):
        read_tracepoint("sched", "sched_switch")


def test_a_kernel_without_tracepoints_of_system_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracepoints, "tracefs", lambda: str(tmp_path))
    with pytest.raises(BpfError, match="no tracepoints of system calls"):
        tracepoints.read_system_call("write")


def test_functions_of_our_own_process() -> None:
    process = Process(os.getpid())
    (libc,) = files_named(process, "libc")
    assert files_named(process, libc.binary.path) == [libc]
    assert files_named(process, "lib") == []
    (probe,) = functions_named(process, "libc", "getppid")
    assert probe.full_name == "libc:getppid"
    assert [operand.name for operand in probe.operands[:2]] == ["arg0", "arg1"]
    address = ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p).value
    offsets = [site.offset for site in probe.sites]
    assert [m.address_of(offsets[0]) for m in libc.executable] == [address]
    assert functions_named(process, "libc", "no_such_function") == []
    # An object, not a function.
    assert functions_named(process, "libc", "stdout") == []
    with pytest.raises(BpfError, match="the loader chooses its code"):
        functions_named(process, "libc", "memcpy")


def test_data_in_a_segment_with_code(tmp_path: Path) -> None:
    """A breakpoint there would change the program's data."""
    source, library = tmp_path / "data.c", tmp_path / "libdata.so"
    source.write_text("const unsigned char table[64] = {1};\nint f(void) {return 1;}\n")
    words = ["gcc", "-shared", "-fPIC", "-Wl,-z,noseparate-code", "-o", library, source]
    subprocess.run(words, check=True)
    loaded = ctypes.CDLL(str(library))
    assert loaded.f() == 1
    process = Process(os.getpid())
    assert functions_named(process, str(library), "table") == []
    assert len(functions_named(process, str(library), "f")) == 1


def test_each_version_of_a_function() -> None:
    """A program linked with an old version calls the old version."""
    (probe,) = functions_named(Process(os.getpid()), "libc", "pthread_cond_wait")
    assert len(probe.sites) == 2
