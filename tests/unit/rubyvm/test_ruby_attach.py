"""Detection of the Ruby, of its VM, and of a layout that is right for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moved_tables import with_wrong

from processes import TIMEOUT, Target, comes_true
from rbtrace_py.errors import (
    NoSuchTarget,
    NotRuby,
    UnknownRuby,
    UnreadableMemory,
    UsageError,
    VmNotStarted,
)
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.processes import descendants
from rbtrace_py.linux.ptrace.tracee import Tracee
from rbtrace_py.model.stacks import SampleFlags
from rbtrace_py.rubyvm import attach as attaching
from rbtrace_py.rubyvm import layout_sources, roots
from rbtrace_py.rubyvm.attach import attach, check_zjit
from rbtrace_py.rubyvm.checks import Contradiction
from rbtrace_py.rubyvm.detect import find_ruby, forced_version
from rbtrace_py.rubyvm.layout import Origin
from rbtrace_py.rubyvm.layouts import table_for
from rbtrace_py.rubyvm.saved import read_saved, write_saved
from rbtrace_py.rubyvm.vm import RubyVM
from rubies import EACH, HERE, WAITING, chroot, command, each_ruby, own_ruby
from ruby_builds import TREES, Build

Start = Callable[..., Any]

STATIC = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
const char ruby_version[] = "3.1.7";
void *rb_cObject;
static struct { long pad[40]; void *at_exit; } vm;
__attribute__((visibility("hidden"))) void *current;
void ruby_vm_at_exit(void (*function)(void)) {
    void **one = malloc(16);
    one[0] = function;
    one[1] = ((void **)current)[40];
    ((void **)current)[40] = one;
}
int main(int argc, char **argv) {
    if (argc > 1) current = &vm;
    printf("ready %lx\n", (unsigned long)current);
    fflush(stdout);
    getchar();
}
"""

WITHOUT_CODE = "the main thread runs no Ruby code yet"


@pytest.fixture
def started(root: None) -> Iterator[Start]:
    """Start processes that end with the test."""
    targets: list[Any] = []

    def begin(*words: str, env: dict[str, str] | None = None) -> Any:
        targets.append(Target(*words, env=env))
        return targets[-1]

    yield begin
    for target in targets:
        target.close()


@each_ruby
def test_what_it_is(ruby: Process) -> None:
    with closing(find_ruby(ruby)) as found:
        memory = ProcessMemory(ruby.pid)
        address = found.address("ruby_version")
        assert address is not None
        said = memory.read(address, 16).split(b"\0")[0].decode()
        assert (found.version.text, found.version.origin) == (said, "ruby_version")
        assert len(bytes.fromhex(found.build_id)) == 20
        assert "libruby" in found.path
        # Code in the file and in memory is the same where no probe is.
        label = found.address("rb_iseq_label")
        assert label is not None
        assert found.code(label, 12) == memory.read(label, 12)


@each_ruby
def test_the_roots(ruby: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pointer's symbol and the code give the same VM, and known IDs resolve."""
    memory = ProcessMemory(ruby.pid)
    with closing(find_ruby(ruby)) as found:
        first = roots.find_vm(memory, found)
        monkeypatch.setattr(roots, "VM_POINTERS", ())
        second = roots.find_vm(memory, found)
        assert second.origin == "the code of ruby_vm_at_exit"
        assert first.address == second.address
        symbols = roots.find_symbols(memory, found)
        assert symbols is not None
        assert 500 < roots.read_word(memory, symbols.address) & 0xFFFFFFFF < 100_000


class Empty:
    """A process's memory in which one word is still zero, or is missing."""

    def __init__(self, pid: int, address: int, is_there: bool = True) -> None:
        self._memory = ProcessMemory(pid)
        self._address, self._is_there = address, is_there

    def read(self, address: int, size: int) -> bytes:
        data = bytearray(self._memory.read(address, size))
        place = self._address - address
        if 0 <= place <= size - 8:
            if not self._is_there:
                raise UnreadableMemory("nothing is mapped there yet")
            data[place : place + 8] = bytes(8)
        return bytes(data)

    def gather(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(*pair) for pair in ranges]


@pytest.mark.parametrize("seconds", [0.1, 3600])
@each_ruby
def test_a_vm_that_is_still_being_made(
    ruby: Process, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not claim that its layout is unknown."""
    monkeypatch.setattr(Process, "age", seconds)
    memory, found = ProcessMemory(ruby.pid), attach(ruby, source=Origin.TABLE)
    offsets, vm = found.layout.offsets, found.vm_address
    assert offsets.vm_main_thread is not None
    assert offsets.th_vm is not None
    assert offsets.ec_vm_stack is not None
    main = roots.read_word(memory, vm + offsets.vm_main_thread)
    words = [vm + offsets.vm_main_thread, main + offsets.th_vm]
    if offsets.th_ec is not None:
        ec = roots.read_word(memory, main + offsets.th_ec)
        words += [main + offsets.th_ec, ec + offsets.ec_vm_stack]
    for word in words:
        with pytest.raises(VmNotStarted, match="still starting"):
            attach(ruby, source=Origin.TABLE, memory=Empty(ruby.pid, word))
    with closing(find_ruby(ruby)) as file:
        pointer = roots.find_vm_pointer(memory, file).address
    with pytest.raises(VmNotStarted, match="still being loaded"):
        attach(ruby, memory=Empty(ruby.pid, pointer, is_there=False))


class Beginning:
    """A Ruby, held at the beginning and the end of each system call until it ends."""

    def __init__(self, name: str) -> None:
        words = (
            [*Build(name).words(), "--disable-gems", "-e", "exit!"]
            if name in TREES
            else command(name, "exit!")
        )
        # It waits to be seized before it becomes Ruby.
        script = 'echo ready; read -r line; exec "$@"'
        self._target = Target("sh", "-c", script, "sh", *words)
        self.process = Process(self._target.pid)

    def stops(self) -> Iterator[None]:
        tracee, signal = Tracee(self.process), 0
        self._target.tell()
        with suppress(NoSuchTarget):
            while stop := tracee.wait(time.monotonic() + TIMEOUT):
                yield
                signal = stop.signal if stop.is_delivery else 0
                tracee.resume_to_call(signal)
        assert stop is not None

    def close(self) -> None:
        self.process.close()
        self._target.close()


@pytest.mark.parametrize("name", [*EACH, *map(chroot, TREES)])
def test_a_ruby_that_is_just_beginning(
    root: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no time are its structures unknown, unless the layout is wrong."""
    said = []
    with closing(Beginning(name)) as beginning:
        for _ in beginning.stops():
            try:
                attach(beginning.process, source=Origin.TABLE)
                said.append("attached")
            except NotRuby as error:
                said.append(str(error).rpartition(": ")[2])
            if said[-1] == WITHOUT_CODE and said.count(WITHOUT_CODE) == 1:
                with monkeypatch.context() as moved:
                    with_wrong(moved, cfp_ep=-8)
                    with pytest.raises(UnknownRuby):
                        attach(beginning.process, source=Origin.TABLE)
    assert {"a pointer is null", WITHOUT_CODE, "attached"} <= set(said)


@each_ruby
def test_attach(ruby: Process) -> None:
    attached = attach(ruby, source=Origin.TABLE)
    assert attached.notes == ()
    assert attached.symbols_address
    assert set(attached.layout.origins.values()) <= {Origin.TABLE, Origin.MINED}


@each_ruby
def test_a_table_that_is_wrong_is_refused(
    ruby: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_wrong(monkeypatch, th_list_node=8)
    with pytest.raises(UnknownRuby, match="main thread is on no list") as caught:
        attach(ruby, source=Origin.TABLE)
    assert re.search(r"\(.*th_list_node 8\b.*\)$", str(caught.value))
    assert "--layout FILE" in caught.value.hint


@each_ruby
def test_a_saved_layout_is_trusted_most(
    ruby: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = attach(ruby)
    text = write_saved(plain.version.text, plain.build_id, plain.layout)
    saved = read_saved(text.encode(), "file")
    with_wrong(monkeypatch, th_vm=8, body_path=8)
    found = attach(ruby, saved=saved)
    assert found.layout.offsets == plain.layout.offsets
    assert set(found.layout.origins.values()) == {Origin.FILE}
    assert found.notes == ()
    # A value that memory contradicts is rejected, whatever its source.
    monkeypatch.undo()
    lying = replace(saved, offsets={**saved.offsets, "th_vm": 8}, build_id="00")
    found = attach(ruby, saved=lying)
    assert found.layout.offsets == plain.layout.offsets
    assert found.layout.origins["th_vm"] is not Origin.FILE
    assert found.notes == (
        f"the saved layout is from another build of Ruby {plain.version.text}",
    )
    for name, size in (("cfp_size", 0), ("cfp_size", 4), ("line_size", 0)):
        lying = replace(saved, offsets={**saved.offsets, name: size})
        found = attach(ruby, saved=lying)
        assert found.layout.offsets == plain.layout.offsets
    with pytest.raises(UsageError, match="the saved layout is for Ruby 1"):
        attach(ruby, saved=replace(saved, version="1.8.7"))


@pytest.mark.parametrize("newest", ["3.1", "3.0.2"])
def test_a_newer_release_is_read_as_the_nearest_and_says_so(
    started: Start, monkeypatch: pytest.MonkeyPatch, newest: str
) -> None:
    """A newer patch release, and a newer minor version while ZJIT is off."""
    target = started(*command(HERE))
    with Process(target.pid) as process:
        version = attach(process).version.text
        known = attach(process).layout.offsets
        major, minor = map(int, version.split(".")[:2])
        table = table_for(version)
        if newest == "3.1":
            old = replace(table, newest=0)
        else:
            monkeypatch.setattr(layout_sources, "VERSIONS", ((major, minor - 1),))
            old = replace(table, newest=0, version=(major, minor - 1))
        monkeypatch.setattr(layout_sources, "table_for", lambda _: old)
        found = attach(process)
        assert found.layout.offsets == known
        assert len(found.notes) == 1
        assert found.notes[0].startswith(f"Ruby {version} is newer than {major}.")


@pytest.mark.rubies
def test_a_member_that_dwarf_does_not_have_is_not_taken_from_the_table(
    started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = layout_sources.table_for

    def with_other_member(version: str) -> Any:
        table = right(version)
        other = replace(table.fields["queue_waiting"], member="rb_queue.waiting")
        return replace(table, fields={**table.fields, "queue_waiting": other})

    monkeypatch.setattr(layout_sources, "table_for", with_other_member)
    target = started(*Build("4.0.5-shared").words(), "-e", WAITING)
    with Process(target.pid) as process:
        found = attach(process)
        assert found.layout.offsets.queue_waiting is None
        assert found.layout.offsets.queue_items is not None
        by_table = attach(process, source=Origin.TABLE)
        assert by_table.layout.offsets.queue_waiting is not None


@pytest.fixture
def knows_no_4_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.0.5 is a newer minor version, and as the newest that is known."""
    old = replace(table_for("4.0.5"), newest=0, version=(3, 4))
    monkeypatch.setattr(layout_sources, "VERSIONS", ((3, 4),))
    monkeypatch.setattr(layout_sources, "table_for", lambda _: old)


def check_attach(pid: int, is_read: bool) -> None:
    """Attach and return notes, or be refused because of ZJIT."""
    with Process(pid) as process:
        if is_read:
            assert attach(process).notes
        else:
            with pytest.raises(UnknownRuby, match="may run ZJIT"):
                attach(process)


@pytest.mark.rubies
@pytest.mark.parametrize(
    ("jit", "has_symbol", "is_read"),
    [
        ("", True, True),
        ("", False, True),
        ("yjit", True, True),
        ("yjit", False, False),  # code of a JIT: of which one, nothing tells
        ("zjit", True, False),
    ],
)
def test_a_newer_minor_version_is_not_read_where_it_may_run_zjit(
    jit: str,
    has_symbol: bool,
    is_read: bool,
    started: Start,
    knows_no_4_0: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = Build("4.0.5-shared", jit).words()
    target = started(*words, "--disable-gems", "-e", WAITING)
    if not has_symbol:
        monkeypatch.setattr(attaching, "find_zjit", lambda _: None)
    check_attach(target.pid, is_read)


@pytest.mark.rubies
@pytest.mark.parametrize("has_symbol", [True, False])
def test_zjit_that_a_newer_minor_version_switches_on_later(
    has_symbol: bool,
    started: Start,
    knows_no_4_0: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = (
        "def m = 1; $stdout.sync = true; puts :ready; $stdin.gets;"
        "RubyVM::ZJIT.enable; 1000.times { m }; puts :on; $stdin.gets"
    )
    words = Build("4.0.5-shared").words()
    target = started(*words, "--disable-gems", "-e", program)
    if not has_symbol:
        monkeypatch.setattr(attaching, "find_zjit", lambda _: None)
    with Process(target.pid) as process:
        memory = ProcessMemory(process.pid)
        attached = attach(process)
        check_zjit(process, memory, attached)
        assert target.step("go") == "on"
        with pytest.raises(UnknownRuby, match="may run ZJIT"):
            check_zjit(process, memory, attached)


@pytest.mark.rubies
@pytest.mark.parametrize(
    ("jit", "what", "is_read"),
    [
        ("", "symbols", True),
        ("zjit", "symbols", False),
        ("", "stack map", True),
        ("yjit", "stack map", True),
        ("zjit", "stack map", False),
        ("zjit", "size", False),
        ("", "size", True),
        ("zjit", "nothing", True),
    ],
)
def test_frames_of_zjit_of_an_unknown_form_are_refused(
    jit: str,
    what: str,
    is_read: bool,
    started: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older revisions of 4.1 have no stack map in a JITFrame, and find it elsewhere.

    A later one may have more in it: several frames.
    """
    words = Build("4.1.0dev-shared", jit).words()
    program = f"def m = 1; 1000.times {{ m }}; {WAITING}"
    target = started(*words, "--disable-gems", "-e", program)
    look_up = layout_sources.fields_from_dwarf

    def without(*arguments: Any) -> Any:
        found = look_up(*arguments)
        assert found is not None
        fields = {**found.fields}
        if what == "size":
            larger = replace(fields["jit_frame_size"], offset=32)
            return replace(found, fields={**fields, "jit_frame_size": larger})
        del fields["jit_frame_map_size"]
        return replace(found, fields=fields)

    if what == "symbols":
        monkeypatch.setattr(attaching, "find_zjit", lambda _: None)
        monkeypatch.setattr(attaching, "may_hide_zjit", lambda _: True)
    if what in ("stack map", "size"):
        monkeypatch.setattr(layout_sources, "fields_from_dwarf", without)
    check_attach(target.pid, is_read)


@pytest.mark.rubies
def test_a_development_branch_is_said_to_match_if_it_does(
    started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubtful(*_: object) -> Contradiction:
        return Contradiction("a doubt", frozenset(), 1, is_doubt=True)

    code = "$stdout.sync = true; puts :ready; $stdin.gets"
    words = Build("4.1.0dev-shared").words()
    target = started(*words, "--disable-gems", "-e", code)
    with Process(target.pid) as process:
        assert any("memory matches it" in note for note in attach(process).notes)
        monkeypatch.setattr(layout_sources, "contradiction", doubtful)
        monkeypatch.setattr(layout_sources, "_MOST_SECONDS", 0)
        assert not any("memory matches it" in note for note in attach(process).notes)


@pytest.mark.rubies
@pytest.mark.parametrize("name", ["4.1.0dev-shared", "4.1.0dev-shared-stripped"])
def test_frames_of_zjit_that_is_switched_on_later(name: str, started: Start) -> None:
    """A VM that was read before reads the frames of ZJIT from then on."""
    program = (
        "$stdout.sync = true; def outer(n) = inner(n, 1);"
        "def inner(n, m) = n > 0 ? m : [n].each { puts :on; $stdin.gets };"
        "puts :ready; $stdin.gets;"
        "RubyVM::ZJIT.enable; 1000.times { outer(1) }; outer(0)"
    )
    target = started(*Build(name).words(), "--disable-gems", "-e", program)
    with Process(target.pid) as process:
        found = attach(process)
        vm = RubyVM(
            ProcessMemory(process.pid),
            found.layout,
            found.vm_address,
            found.symbols_address,
            zjit=found.zjit_address,
        )
        (main,) = vm.threads()
        assert vm.sample(main) is not None
        assert not vm.has_jit_frames
        assert target.step("go") == "on"

        def reads() -> bool:
            """Return whether the call that printed has returned, too."""
            walked = vm.sample(main)
            return walked is not None and (
                walked.stack.frames[-1].name == "IO#gets"
                and walked.flags is SampleFlags.CLEAN
            )

        assert comes_true(reads)
        walked = vm.sample(main)
    assert vm.has_jit_frames
    assert walked is not None
    assert [frame.name for frame in walked.stack.frames] == [
        "<main>", "Object#outer", "Object#inner", "Array#each",
        "block in Object#inner", "IO#gets",
    ]  # fmt: skip
    assert walked.flags is SampleFlags.CLEAN


def test_not_ruby(started: Start) -> None:
    target = started("sh", "-c", "echo ready; read line")
    with Process(target.pid) as process, pytest.raises(NotRuby) as caught:
        attach(process)
    assert caught.value.exit_code == 4


def test_a_forced_version(started: Start) -> None:
    target = started(*command(HERE))
    with Process(target.pid) as process:
        minor = ".".join(attach(process).version.text.split(".")[:2])
        assert attach(process, minor).version.text == f"{minor}.0"
        # At another version's offsets there may be null, as in a VM that is starting.
        with pytest.raises((UnknownRuby, VmNotStarted), match=r"9\.9\.9|starting"):
            attach(process, "9.9.9", source=Origin.TABLE)
        with pytest.raises(UsageError, match="not a Ruby version"):
            attach(process, "banana")


@pytest.mark.parametrize(
    ("text", "version"), [("3.3", "3.3.0"), ("ruby-3.3.8", "3.3.8"), ("2.7.4", "2.7.4")]
)
def test_versions_are_read(text: str, version: str) -> None:
    assert forced_version(text).text == version


@pytest.mark.parametrize("text", ["", "3", "3.x", "3.3.8.1", "33.3", "../3.3"])
def test_no_versions(text: str) -> None:
    with pytest.raises(UsageError):
        forced_version(text)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str, str], list[str]]:
    """This machine's Ruby in a separate directory, under the test's names."""

    def copy(program_name: str, library_name: str) -> list[str]:
        program, library = own_ruby()
        shutil.copy(program, tmp_path / program_name)
        shutil.copy(library, tmp_path / library_name)
        preload = f"LD_PRELOAD={tmp_path / library_name}"
        words = [str(tmp_path / program_name), "--disable-gems", "-e", WAITING]
        return ["env", preload, *words]

    return copy


def test_files_called_otherwise(
    started: Start, copied: Callable[[str, str], list[str]]
) -> None:
    target = started(*copied("app", "libapp.so"))
    with Process(target.pid) as process:
        attached = attach(process)
        assert attached.path.endswith("/libapp.so")


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_files_that_are_gone(
    started: Start,
    copied: Callable[[str, str], list[str]],
    tmp_path: Path,
    change: str,
) -> None:
    target = started(*copied("ruby3", "libruby.so"))
    for name in ("ruby3", "libruby.so"):
        (tmp_path / name).unlink()
        if change == "replaced":
            (tmp_path / name).write_bytes(b"something else")
    with Process(target.pid) as process:
        right = attach(process)
        assert right.path.endswith("libruby.so (deleted)")


def test_other_namespaces(started: Start, tmp_path: Path) -> None:
    """The target's paths and PIDs mean something else here, and the files are not
    ours."""
    program, library = own_ruby()
    script = (
        f"mount -t tmpfs none {tmp_path} && cp {program} {tmp_path}/ruby &&"
        f" cp {library} {tmp_path}/{library.name} &&"
        f" exec env LD_PRELOAD={tmp_path}/{library.name} {tmp_path}/ruby"
        f" --disable-gems -e '{WAITING}'"
    )
    words = ("unshare", "--mount", "--pid", "--fork", "--net", "--ipc")
    target = started(*words, "sh", "-c", script)
    pid = descendants(target.pid)[-1]
    with Process(pid) as process:
        assert {"mnt", "pid"} <= set(process.foreign_namespaces())
        right = attach(process)
        assert right.path == f"{tmp_path}/{library.name}"


@pytest.mark.parametrize("flags", [["-no-pie"], ["-pie", "-fPIE"], ["-pie", "-fPIC"]])
def test_linked_statically(started: Start, tmp_path: Path, flags: list[str]) -> None:
    """A program that contains the VM. Only its code has the hidden pointer."""
    source = tmp_path / "ruby.c"
    source.write_text(STATIC)
    words = [
        "gcc",
        "-O2",
        "-rdynamic",
        *flags,
        str(source),
        "-o",
        str(tmp_path / "app"),
    ]
    subprocess.run(words, check=True)
    subprocess.run(["strip", str(tmp_path / "app")], check=True)
    target = started(str(tmp_path / "app"), "vm")
    with Process(target.pid) as process, closing(find_ruby(process)) as found:
        assert found.version.text == "3.1.7"
        vm = roots.find_vm(ProcessMemory(target.pid), found)
        assert vm.address == int(target.ready.split()[1], 16)
    target = started(str(tmp_path / "app"))
    with Process(target.pid) as process, pytest.raises(VmNotStarted):
        attach(process)


def test_a_process_that_ended(started: Start) -> None:
    target = started(*command(HERE))
    with Process(target.pid) as process:
        os.kill(target.pid, 9)
        target.process.wait()
        with pytest.raises(Exception, match="has ended"):
            attach(process)


@pytest.mark.parametrize("name", EACH)
def test_main_thread_in_a_fiber_of_a_fiber(started: Start, name: str) -> None:
    """Fibers that resumed another are suspended; only the innermost is resumed."""
    program = f"Fiber.new {{ Fiber.new {{ {WAITING} }}.resume }}.resume"
    target = started(*command(name, program))
    assert attach(Process(target.pid)).vm_address
