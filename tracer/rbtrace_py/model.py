"""The nouns every storey shares: probes, operands, sites, files; frames, samples.

Plain values without behaviour beyond naming themselves; nothing here reads a
process or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple


class OperandType(IntEnum):
    """Ruby type of an operand, numbered as in the ``rbtrace`` note."""

    UNKNOWN = 0
    INTEGER = 1
    STRING = 2
    SYMBOL = 3
    FLOAT = 4
    BOOL = 5
    NIL = 6  # not known yet: the program fired only nil so far

    @property
    def is_text(self) -> bool:
        """Is the operand a pointer to NUL-terminated bytes?"""
        return self in (OperandType.STRING, OperandType.SYMBOL)


class OperandRole(IntEnum):
    """What an operand is for, numbered as in the ``rbtrace`` note."""

    ARGUMENT = 0
    DURATION = 1
    OUTCOME = 2
    UNKNOWN = 255


class ProbeRole(IntEnum):
    """What a probe marks, numbered as in the ``rbtrace`` note."""

    EVENT = 0
    SPAN_BEGIN = 1
    SPAN_END = 2


NIL_INTEGER = -(1 << 63)
NIL_FLOAT_BITS = 0x7FF8726274726163
NIL_BOOL = 2

OUTCOMES = {0: "returned", 1: "raised", 2: "thrown"}
"""How a span ended, by what its outcome operand holds."""

DURATION_UNTRACED = -1
"""Duration of a span that began before anyone traced it."""


class LocationKind(IntEnum):
    """Where a site keeps an operand, numbered as in the BPF programs."""

    CONSTANT = 0
    REGISTER = 1
    MEMORY = 2


@dataclass(frozen=True, slots=True)
class Location:
    """One operand at one site, from the ``stapsdt`` note's argument string.

    ``register`` and ``index`` are DWARF-free numbers of ``linux.operands``
    (the order of ``pt_regs``); None where there is none. ``value`` is the
    constant, or the displacement of a memory operand, in bytes. ``size`` is
    1, 2, 4 or 8 bytes.
    """

    kind: LocationKind
    size: int
    signed: bool
    register: int | None = None
    value: int = 0
    index: int | None = None
    scale: int = 1
    is_float: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """What is known of an operand whichever site it is read at."""

    name: str
    type: OperandType = OperandType.UNKNOWN
    role: OperandRole = OperandRole.ARGUMENT
    signed: bool = False
    size: int = 8

    @property
    def is_duration(self) -> bool:
        """Is it nanoseconds, of a span?"""
        return self.role is OperandRole.DURATION and self.type is OperandType.INTEGER


@dataclass(frozen=True, slots=True)
class Site:
    """One place in a file where a probe fires.

    ``address`` is the virtual address in the file, ``offset`` the byte offset
    a uprobe is put at, ``semaphore_offset`` the file offset of the probe's
    semaphore (0: none). A location of None is one that could not be parsed.
    """

    address: int
    offset: int
    semaphore_offset: int
    locations: tuple[Location | None, ...]


@dataclass(frozen=True, slots=True)
class Binary:
    """A file mapped by a process, by identity.

    ``path`` is what ``/proc/PID/maps`` says, and only for people to read.
    ``is_image`` is true of files made by the gem (they carry our notes).
    """

    device: int
    inode: int
    path: str
    is_image: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return (self.device, self.inode)


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of one file, with all its sites."""

    provider: str
    name: str
    binary: Binary
    sites: tuple[Site, ...]
    operands: tuple[Operand, ...] = ()
    role: ProbeRole = ProbeRole.EVENT

    @property
    def full_name(self) -> str:
        return f"{self.provider}:{self.name}"

    @property
    def span_name(self) -> str | None:
        """Name of the span this probe is an end of, without the provider."""
        suffix = {ProbeRole.SPAN_BEGIN: "__begin", ProbeRole.SPAN_END: "__end"}
        ending = suffix.get(self.role)
        if ending and self.name.endswith(ending) and len(self.name) > len(ending):
            return self.name[: -len(ending)]
        return None

    @property
    def signature(self) -> str:
        """``shop:checkout(id: Integer, sku: String)``."""
        known = [o for o in self.operands if o.role is not OperandRole.UNKNOWN]
        return f"{self.full_name}({', '.join(map(describe_operand, known))})"

    def operand(self, name: str) -> int | None:
        """Index of the operand called ``name``, or None."""
        for index, operand in enumerate(self.operands):
            if operand.name == name:
                return index
        return None


_TYPE_NAMES = {
    OperandType.INTEGER: "Integer",
    OperandType.STRING: "String",
    OperandType.SYMBOL: "Symbol",
    OperandType.FLOAT: "Float",
    OperandType.BOOL: "bool",
    OperandType.NIL: "nil",
}


def describe_operand(operand: Operand) -> str:
    """``id: Integer``; for operands of no known type their size: ``arg0: u64``."""
    kind = _TYPE_NAMES.get(operand.type)
    if kind is None:
        kind = f"{'s' if operand.signed else 'u'}{operand.size * 8}"
    return f"{operand.name}: {kind}"


class FrameKind(IntEnum):
    """What a frame is, numbered as in recordings."""

    RUBY = 0
    C = 1
    NATIVE = 2
    GC = 3
    MARKER = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack; texts are safe to show.

    ``name`` is the qualified name (``Order#total``, ``block in Order#total``,
    ``<main>``), ``label`` what the target's own Ruby calls it. A C function has the
    path and line of its caller. ``path`` is empty and ``line`` None where unknown.
    """

    kind: FrameKind
    name: str
    label: str
    path: str
    line: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Frames, the root first. Equal ones are mostly, not always, the same object.

    Compared by identity, as a stack of 500 frames takes long to hash.
    """

    frames: tuple[Frame, ...]


class ThreadState(IntEnum):
    """What a thread is doing, numbered as in recordings."""

    UNKNOWN = 0
    RUNNING = 1
    """On a CPU, or ready to be."""
    WAITING = 2
    """Could run, but for Ruby's lock (GVL)."""
    SLEEPING = 3
    """Waits for something: time, a file, another thread."""


@dataclass(frozen=True, slots=True, eq=False)
class RubyThread:
    """A Ruby thread of a process; one object for each, as long as it is known.

    ``tid`` is the kernel's id, None where it has none or it is not known;
    ``address`` that of the VM's structure; ``ractor`` is 1 for the main one.
    """

    pid: int
    tid: int | None
    address: int
    name: str
    ractor: int = 1
    is_main: bool = False


class SampleFlags(IntFlag):
    """What is not whole about a sample, numbered as in recordings."""

    CLEAN = 0
    TRIMMED = 1
    """Its innermost frames changed while they were read, and are left out."""
    TRUNCATED = 2
    """It is deeper than what is read; the outermost frames are missing."""


class Sample(NamedTuple):
    """What one thread was doing at one moment.

    time_ns: CLOCK_REALTIME when it was read
    weight: how much it stands for, in the unit of the whole (samples, or ns)
    fiber: address of the fiber's structure, 0 where not known
    """

    time_ns: int
    thread: RubyThread
    state: ThreadState
    stack: Stack
    weight: int = 1
    flags: SampleFlags = SampleFlags.CLEAN
    fiber: int = 0


class CallKind(IntEnum):
    """What a record of the agent's hook tells (docs/agent.md, "Records")."""

    ENTRY = 1
    RETURN = 2
    C_ENTRY = 3
    C_RETURN = 4
    LOST = 5
    GC_BEGIN = 6
    GC_END = 7
    RAISE = 8
    OBJECT = 9
    CPU = 10
    STACK = 11
    PLACE = 12
    THREAD = 13
    TEXT = 14


CallRecord = tuple[int, int, int, int, int]
"""time, method, depth, kind, flags: numbers, as there may be millions a second."""
CALL_RECORD_SIZE = 16
CALL_ORPHAN = 1
"""Flag of a return whose entry was before arming."""
CALL_VALUES = 2
"""Flag of an entry that is followed by the values of expressions, in TEXT records."""
CALL_TEXT_SIZE, CALL_TEXT_GOES_ON = 15, 16
"""Flags of a TEXT record: how many of its bytes count, and whether more follow."""


class MethodKind(IntEnum):
    """What the agent's hook counts as a method."""

    NO_ROOM = 0
    """All that found no room in its table."""
    RUBY = 1
    C = 2
    GC = 3
    RAISE = 4
    OBJECT = 5


@dataclass(frozen=True, slots=True)
class CalledMethod:
    """A method the hook saw, by its definition; texts are the target's.

    owner: class or module that it is defined in, None if it has none or it is unknown
    path, line: where it is defined, None if unknown
    """

    kind: MethodKind
    owner: str | None
    is_singleton: bool
    name: str | None
    path: str | None = None
    line: int | None = None

    @property
    def full_name(self) -> str:
        """``String#gsub``, ``Process.pid``; of an exception or object its class."""
        if self.kind is MethodKind.GC:
            return "garbage_collect"
        if self is NO_ROOM_METHOD:
            return "(no room)"
        if self.name is None:
            return self.owner or "(unknown)"
        if self.owner is None:
            return self.name
        return f"{self.owner}{'.' if self.is_singleton else '#'}{self.name}"


NO_ROOM_METHOD = CalledMethod(MethodKind.NO_ROOM, None, False, "")
"""All for which there was no room."""
UNKNOWN_METHOD = CalledMethod(MethodKind.NO_ROOM, None, False, None)
