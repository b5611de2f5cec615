"""What a short compiled function loads: chains of offsets from where it begins.

``rb_iseq_label(iseq)`` is two loads: at 16 from its argument, and at 80 from that.
Such a chain names two members of two structures, and costs microseconds to find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Flow:
    """Everything that was loaded, in order, and what the function returns."""

    loads: list[Chain] = field(default_factory=list)
    returns: list[Chain] = field(default_factory=list)


State = dict[int, Chain]
ReadCode = Callable[[int, int], bytes]
"""(address, size) -> up to that many bytes of code."""


def follow(read_code: ReadCode, address: int, size: int = 512) -> Flow:
    """Follow the function at ``address`` on all its ways, but into no call.

    What is not understood ends a way; what it loaded before counts.
    """
    code = read_code(address, size)
    flow = Flow()
    state: State = {RDI: Chain("argument"), RSI: Chain("second")}
    ways: list[tuple[int, State]] = [(address, state)]
    seen: set[int] = set()
    left = _MOST_INSTRUCTIONS
    while ways:
        at, state = ways.pop()
        for instruction in _straight(code, address, at, seen):
            left -= 1
            ways.extend(_step(flow, state, instruction))
            if left <= 0:
                return flow
    return flow


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


def _step(
    flow: Flow, state: State, instruction: Instruction
) -> Iterator[tuple[int, State]]:
    """Change ``state`` as the instruction does; where else it may go on."""
    op = instruction.op
    if op is Op.RETURN:
        if RAX in state:
            flow.returns.append(state[RAX])
    elif op is Op.CALL:
        for register in CALLER_SAVED:
            state.pop(register, None)
        state[RAX] = Chain("result")
    elif op in (Op.JUMP, Op.BRANCH):
        if instruction.target is not None:
            yield instruction.target, dict(state)
    elif instruction.register is not None and instruction.register != RSP:
        value = _value(flow, state, instruction)
        if value is None:
            state.pop(instruction.register, None)
        else:
            state[instruction.register] = value


def _value(flow: Flow, state: State, instruction: Instruction) -> Chain | None:
    """What the instruction's register holds after it, None if not known."""
    op, place = instruction.op, instruction.place
    before = state.get(instruction.register) if instruction.register else None
    if instruction.register == RAX:
        before = state.get(RAX)
    if op is Op.MOVE:
        return state.get(instruction.source or 0)
    if op is Op.LOAD and place is not None:
        chain = _load(state, place, instruction.width)
        if chain is not None:
            flow.loads.append(chain)
        return chain
    if op is Op.ADDRESS and place is not None:
        known = place.base is None and not place.indexed
        return Chain(place.displacement) if known else None
    if op is Op.SHIFT_RIGHT and before is not None:
        return Chain(before.root, before.loads, before.width, instruction.number)
    if op is Op.ADD and before is not None and before.root == "thread":
        return before
    return None


def _load(state: State, place: Place, width: int) -> Chain | None:
    """What lies at ``place``."""
    if place.indexed:
        return None
    if place.segment is Segment.THREAD:
        is_pointer = place.base is None and place.displacement == 0
        return Chain("thread") if is_pointer else Chain("thread", (0,), width)
    if place.base is None:
        return Chain(place.displacement, (0,), width)
    base = state.get(place.base)
    if base is None or base.shift or len(base.loads) >= _MOST_LOADS:
        return None
    return Chain(base.root, (*base.loads, place.displacement), width)
