"""Stacks read from outside equal those that Ruby itself reports, at any instruction.

A busy thread that holds the GVL is stopped by ptrace. Its stack is read, and then the
thread runs ``rb_profile_frames``. Method entries and iseqs are compared by address.
"""

from __future__ import annotations

import random
import struct
import time
from typing import NamedTuple

import builds
import pytest
import tally
from stopped import Fault, StoppedThread

import rubies
from rbtrace_py.linux.maps import mappings
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.model.stacks import Frame
from rbtrace_py.rubyvm.detect import find_ruby
from rbtrace_py.rubyvm.frames import UNKNOWN_PC, FrameNode
from rbtrace_py.rubyvm.layouts import parse
from rbtrace_py.rubyvm.vm import RubyVM
from ruby_builds import Build, each_build

SEED = 2718
LONGEST_RUN = 0.003
"""Maximum number of seconds between two stops."""
LIMIT = 2000
"""Maximum number of frames. The deepest stack of truth_busy.rb has some 400."""
CFRAME = 0x80
"""VM_FRAME_FLAG_CFRAME: no Ruby code."""
LOCAL = 0x2
"""VM_ENV_FLAG_LOCAL: the environment has the method entry."""
DUMMY = 0x79990001
"""VM_FRAME_MAGIC_DUMMY: the oldest frame of a thread."""
BY_ISEQ, BY_C = 0, 1
"""VM_METHOD_TYPE_ISEQ and VM_METHOD_TYPE_CFUNC (method.h), of four bits."""


@pytest.mark.root
@each_build
@pytest.mark.timeout(900)
def test_instructions(build: Build, root: None) -> None:
    found = tally.tally("instructions", build)
    chance = random.Random(SEED)
    with builds.running(build, "stacks/truth_busy.rb", SEED) as process:
        target = Busy(process)
        checked = time.monotonic()
        for _ in range(builds.stops(build)):
            time.sleep(chance.random() * LONGEST_RUN)
            target.compare(found)
            if time.monotonic() > checked + 1:  # as often as a sampler does
                checked = time.monotonic()
                target.vm.revalidate()
        target.thread.close()
    found.check()


class Row(NamedTuple):
    """A frame of ``rb_profile_frames``: a method entry or an iseq, and a line.

    ``line`` is None if it is unknown, and 0 for a C function.
    """

    address: int
    line: int | None


class Busy:
    """The target, its VM, and its main thread, which is stopped again and again.

    ``true`` has the correct stacks and the times of their stops (CLOCK_MONOTONIC, ns).
    """

    def __init__(self, process: rubies.Running) -> None:
        self.vm = process.vm()
        self._process = Process(process.pid)
        self._memory = ProcessMemory(process.pid)
        with find_ruby(self._process) as ruby:
            address = ruby.address("rb_profile_frames")
            self._version = parse(ruby.version.text)
        assert address is not None
        self._function = address
        self._main = self.vm.threads()[0]
        self._nodes = NodeKeys(self.vm)
        self.thread = StoppedThread(self._process)
        self.true: list[tuple[int, tuple[Frame, ...]]] = []

    def compare(self, found: tally.Tally) -> None:
        """Stop the thread once, read its stack, ask Ruby, and continue."""
        registers = self.thread.stop()
        at = time.monotonic_ns()
        try:
            is_jit_code = self._is_jit_code(registers.rip)
            walked = self.vm.sample(self._main)
            if walked is None or walked.flags:
                found.in_jit += is_jit_code
                found.flags.append(self._reason())
                self._compare_rest(found)
                return
            ours = self._ours()
            try:
                truth = self._profiled(found)
            except Fault:
                found.crashed += 1
                return
            if ours and not truth:
                # A fiber begins: the thread's variable already has its context, the VM
                # does not.
                found.flags.append(f"Ruby has no frames\n{show(ours)}")
                return
            if self._is_of_old_frame(ours, truth):
                found.crashed += 1
                return
            wrong = difference(ours, truth, bool(found.build.jit))
            if wrong and self._lacks_environment():
                # Ruby omitted the newest frame, or reported its iseq instead of its
                # method.
                below = truth[len(truth) - len(ours) + 1 :]
                wrong = difference(ours[1:], below, bool(found.build.jit))
                if not wrong:
                    found.crashed += 1
                    return
            is_unknown = any(row.line is None for row in ours)
            found.unknown_lines += is_unknown
            found.in_jit += is_jit_code or is_unknown
            if wrong:
                found.differences.append(
                    f"{wrong}\nours {show(ours)}\nRuby {show(truth)}"
                    f"\n{describe(walked.stack.frames)}"
                )
            else:
                found.same += 1
                self.true.append((at, walked.stack.frames))
        finally:
            self.thread.resume()

    def _is_of_old_frame(self, ours: list[Row], truth: list[Row]) -> bool:
        """Return whether Ruby gives the newest frame the method of an older frame.

        Ruby reads the frame's method entry, which is written last when the frame is
        pushed. Until then its place holds the entry of an older frame.
        """
        if not ours or not truth or ours[0].address == truth[0].address:
            return False
        nodes = reversed(self._nodes.of(self._main.address))
        newest = next(node for node in nodes if self._row(node) is not None)
        iseq = self._nodes.key(newest)[0]
        return iseq > 0 and not self.vm._tree.is_code_of(iseq, truth[0].address)

    def _lacks_environment(self) -> bool:
        """Return whether the newest frame's ``ep`` still belongs to an older frame.

        2.7 writes ``ec->cfp`` first and ``cfp->ep`` last when it pushes a frame. Ruby
        reads the method and the flags at ``ep``; we know the method by its code.
        """
        newest = self._nodes.of(self._main.address)[-1]
        _, method, flags = self._nodes.key(newest)
        frames = self.vm._tracks[self._main.address].frames
        ep = struct.unpack_from("=Q", frames, self.vm.layout.offsets.cfp_ep)[0]
        there, _, its_flags = struct.unpack("=3Q", self._memory.read(ep - 16, 24))
        if its_flags != flags:
            return True
        return bool(flags & LOCAL) and self.vm._tree.entry(there) != method

    def _compare_rest(self, found: tally.Tally) -> None:
        """Pop the newest frames that were dropped from a stack, and check that Ruby
        then reports the remaining frames."""
        track = self.vm._track(self._main.address)
        reading = self.vm._read(track, None)
        if reading is None:
            return
        depth = min((len(reading.nodes), *reading.unsure[:1]))
        ours = self._rows(reading.nodes[:depth])
        if not ours:
            return  # it is between two fibers
        offsets = self.vm.layout.offsets
        place = reading.ec + offsets.ec_cfp
        before = self.vm.values.u64(place)
        self.thread.write(place, track.high - depth * offsets.cfp_size)
        try:
            truth = self._profiled(found)
        finally:
            self.thread.write(place, before)
        if wrong := difference(ours, truth, bool(found.build.jit)):
            found.differences.append(
                f"of what is left {wrong}\nours {show(ours)}\nRuby {show(truth)}"
                f"\n{found.flags[-1]}"
            )

    def _reason(self) -> str:
        """Describe why the current stack is flagged, and its newest frames."""
        reading = self.vm._read(self.vm._track(self._main.address), None)
        if reading is None:
            return "unreadable"
        size = self.vm.layout.offsets.cfp_size
        frames = tuple(one.frame for one in reading.nodes if one.frame)
        doubtful = [reading.nodes[index].frame for index in reading.unsure]
        return (
            f"{len(reading.nodes)} of {len(reading.snapshot.frames) // size} frames,"
            f" in doubt: {doubtful}\n{describe(frames[-4:])}"
        )

    def _is_jit_code(self, address: int) -> bool:
        """Return whether the address is in an executable mapping without a file."""
        return any(
            one.start <= address < one.end and one.is_executable and not one.is_file
            for one in mappings(self._process)
            if one.path != b"[vdso]"
        )

    def _profiled(self, found: tally.Tally) -> list[Row]:
        """Call ``rb_profile_frames(0, LIMIT, buffer, lines)``; newest frame first."""
        room = LIMIT * 12
        buffer = self.thread.reserved(room)
        lines = buffer + 8 * LIMIT
        try:
            count = self.thread.call(self._function, 0, LIMIT, buffer, lines, room=room)
        except Fault:
            # An innermost frame's stale pc is not an address in its code.
            found.unanswered += 1
            lines = 0
            count = self.thread.call(self._function, 0, LIMIT, buffer, 0, room=room)
        count &= 0xFFFFFFFF
        values = struct.unpack(f"={count}Q", self._memory.read(buffer, 8 * count))
        if not lines:
            return [Row(value, None) for value in values]
        numbers = struct.unpack(f"={count}i", self._memory.read(lines, 4 * count))
        return [Row(*row) for row in zip(values, numbers, strict=True)]

    def _ours(self) -> list[Row]:
        """Return the stack that was read in the form of ``rb_profile_frames``."""
        nodes = self._nodes.of(self._main.address)
        # Ruby leaves out frames without a pc up to 2.7, and from 3.2 on. A JIT pushes
        # such frames. Others are just being pushed.
        leaves_out = not (3, 0) <= self._version < (3, 2)
        if nodes and leaves_out and self._has_no_pc(nodes[-1]):
            nodes = nodes[:-1]
        return self._rows(nodes)

    def _rows(self, nodes: list[FrameNode]) -> list[Row]:
        rows = (self._row(node) for node in reversed(nodes))
        return [row for row in rows if row is not None]

    def _has_no_pc(self, newest: FrameNode) -> bool:
        """Return whether a frame has Ruby code and a null pc."""
        frames = self.vm._tracks[self._main.address].frames
        pc = struct.unpack_from("=Q", frames, self.vm.layout.offsets.cfp_pc)[0]
        return pc == 0 and not self._nodes.key(newest)[2] & CFRAME

    def _row(self, node: FrameNode) -> Row | None:
        iseq, method, flags = self._nodes.key(node)
        if flags & self.vm._tree.magic_mask == DUMMY:
            return Row(iseq, 0) if self._version < (3, 2) and iseq else None
        kind = self._kind(method) if method else None
        if flags & CFRAME:
            has_c = self._version >= (3, 0) and kind == BY_C
            return Row(method, 0) if has_c else None
        return Row(method if kind == BY_ISEQ else iseq, self._nodes.line(node))

    def _kind(self, method: int) -> int:
        """Return ``me->def->type``."""
        offsets, values = self.vm.layout.offsets, self.vm.values
        assert offsets.me_def is not None
        assert offsets.def_type is not None
        definition = values.u64(method + offsets.me_def)
        return values.memory.read(definition + offsets.def_type, 1)[0] & 0xF


class NodeKeys:
    """The words that were read from the frame of each node of a VM's tree."""

    def __init__(self, vm: RubyVM) -> None:
        self._vm = vm
        self._keys: dict[FrameNode, tuple[int, int, int]] = {}
        self._child = vm._tree.child
        vm._tree.child = self._make  # type: ignore[method-assign]

    def _make(
        self, node: FrameNode, iseq: int, pc: int, method: int, flags: int
    ) -> FrameNode | None:
        made = self._child(node, iseq, pc, method, flags)
        if made is not None:
            # The address of a collected method may now hold an svar.
            self._keys[made] = (iseq, self._vm._tree.entry(method), flags)
        return made

    def of(self, thread: int) -> list[FrameNode]:
        """Return the nodes of the latest stack, oldest first."""
        return self._vm._tracks[thread].nodes

    def key(self, node: FrameNode) -> tuple[int, int, int]:
        """Return the address of the iseq (or 0), the method entry (or 0), and the
        flags."""
        return self._keys[node]

    def line(self, node: FrameNode) -> int | None:
        """Return its own line, even if its caller's line is shown."""
        if node.pc == UNKNOWN_PC:
            return node.frame.line if node.iseq is None and node.frame else None
        if node.iseq is None or not node.iseq.is_internal:
            return node.frame.line if node.frame else None
        return self._vm._tree._iseqs.line(node.iseq, node.pc)


def difference(ours: list[Row], truth: list[Row], has_jit: bool) -> str | None:
    """Return the difference. Only in a JIT's innermost frame may a line be unknown."""
    if len(ours) != len(truth):
        return f"{len(ours)} frames, not {len(truth)}"
    for number, (mine, real) in enumerate(zip(ours, truth, strict=True)):
        if mine.address != real.address:
            return f"frame {number} is {mine.address:#x}, not {real.address:#x}"
        if mine.line != real.line and None not in (mine.line, real.line):
            return f"frame {number} is on line {mine.line}, not {real.line}"
        if mine.line is None and real.line and (number > 0 or not has_jit):
            return f"frame {number} has no line, not {real.line}"
    return None


def show(rows: list[Row]) -> str:
    return " ".join(f"{row.address:x}:{row.line}" for row in rows)


def describe(frames: tuple[Frame, ...]) -> str:
    return "\n".join(f"  {one.name} {one.path}:{one.line}" for one in frames[::-1])
