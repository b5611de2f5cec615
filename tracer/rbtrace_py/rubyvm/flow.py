"""What a short compiled function loads: chains of offsets from where it begins.

``rb_iseq_label(iseq)`` is two loads: at 16 from its argument, and at 80 from that.
Such a chain names two members of two structures, and costs microseconds to find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rbtrace_py.rubyvm.x86 import (
    CALLER_SAVED,
    LONGEST,
    RAX,
    RDI,
    RSI,
    RSP,
    Instruction,
    Op,
    Place,
    Segment,
    decode,
)

_MOST_INSTRUCTIONS = 160
"""Decoded in one function, on all its ways together."""

_MOST_LOADS = 8

Root = int | str
"""An address in the process; or ``argument``, ``second``, ``thread`` (what is local
to the thread) or ``result`` (of a call)."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What was loaded: ``loads`` are offsets, one after the other, from ``root``.

    width: bytes of the last load
    shift: by how many bits the value was shifted right since
    """

    root: Root
    loads: tuple[int, ...] = ()
    width: int = 8
    shift: int = 0


State = dict[int, Chain]
ReadCode = Callable[[int, int], bytes]
"""(address, size) -> up to that many bytes of code."""


def follow(read_code: ReadCode, address: int, size: int = 512) -> Iterator[Chain]:
    """Yield what the function at ``address`` loads, on all its ways, in no call.

    A value that was loaded and then shifted comes again. What is not understood
    ends a way; what it loaded before counts.
    """
    code = read_code(address, size)
    state: State = {RDI: Chain("argument"), RSI: Chain("second")}
    ways: list[tuple[int, State]] = [(address, state)]
    seen: set[int] = set()
    left = _MOST_INSTRUCTIONS
    while ways:
        at, state = ways.pop()
        for instruction in _straight(code, address, at, seen):
            left -= 1
            target = instruction.target
            if instruction.op in (Op.JUMP, Op.BRANCH) and target is not None:
                ways.append((target, dict(state)))
            chain = _step(state, instruction)
            if chain is not None:
                yield chain
            if left <= 0:
                return


def _straight(
    code: bytes, begin: int, at: int, seen: set[int]
) -> Iterator[Instruction]:
    """Instructions from ``at`` up to a jump, an end, or what was seen already."""
    while begin <= at < begin + len(code) and at not in seen:
        seen.add(at)
        into = at - begin
        instruction = decode(code[into : into + LONGEST], at)
        if instruction is None:
            return
        yield instruction
        if instruction.op in (Op.JUMP, Op.RETURN):
            return
        at += instruction.size


def _step(state: State, instruction: Instruction) -> Chain | None:
    """Change ``state`` as the instruction does; what it loads or shifts."""
    register = instruction.register
    if instruction.op is Op.CALL:
        for changed in CALLER_SAVED:
            state.pop(changed, None)
        state[RAX] = Chain("result")
    if register is None or register == RSP:
        return None
    value = _value(state, instruction, state.pop(register, None))
    if value is not None:
        state[register] = value
    news = instruction.op in (Op.LOAD, Op.SHIFT_RIGHT)
    return value if news else None


def _value(
    state: State, instruction: Instruction, before: Chain | None
) -> Chain | None:
    """What the instruction's register holds after it, None if not known."""
    op, place = instruction.op, instruction.place
    source = instruction.source
    if op is Op.MOVE and source is not None:
        return before if source == instruction.register else state.get(source)
    if op is Op.LOAD and place is not None:
        base = before if place.base == instruction.register else None
        return _load(base or state.get(place.base or 0), place, instruction.width)
    if op is Op.ADDRESS and place is not None:
        known = place.base is None and not place.indexed
        return Chain(place.displacement) if known else None
    if op is Op.SHIFT_RIGHT and before is not None:
        return Chain(before.root, before.loads, before.width, instruction.number)
    if op is Op.ADD and before is not None and before.root == "thread":
        return before
    return None


def _load(base: Chain | None, place: Place, width: int) -> Chain | None:
    """What lies at ``place``, whose base register holds ``base``."""
    if place.indexed:
        return None
    if place.segment is Segment.THREAD:
        is_pointer = place.base is None and place.displacement == 0
        return Chain("thread") if is_pointer else Chain("thread", (0,), width)
    if place.base is None:
        return Chain(place.displacement, (0,), width)
    if base is None or base.shift or len(base.loads) >= _MOST_LOADS:
        return None
    return Chain(base.root, (*base.loads, place.displacement), width)
