"""What machine code says of a layout: the offsets that exported getters load.

``rb_iseq_label`` is compiled to two loads, and their offsets are those of two members.
Reading them costs about a millisecond. It depends on the compiler, so it is the least
trusted source: it confirms an offset, or offers one where the others are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from rbtrace_py.errors import BadElf
from rbtrace_py.rubyvm.detect import Ruby
from rbtrace_py.rubyvm.flow import Chain, follow
from rbtrace_py.rubyvm.layout import Offsets

EC = "ec"
"""Root of chains: the execution context, wherever the function has it from."""
GLOBAL = "global"
"""A pointer in .bss, loaded directly or through the GOT."""
CALLED = "called"
"""The result of a call."""


@dataclass(frozen=True, slots=True)
class Getter:
    """A function that loads the members ``fields``, one from the other.

    skipped: loads between the root and the first of them
    then: loads after the last of them, the same in each version
    width: bytes of the last load, where that tells it from others
    unless: a field which only versions have that made the getter otherwise
    """

    function: str
    root: str
    fields: tuple[str, ...]
    skipped: int = 0
    then: tuple[int, ...] = ()
    width: int | None = None
    unless: str = ""


GETTERS = (
    Getter("rb_iseq_label", "argument", ("iseq_body", "body_label")),
    Getter("rb_iseq_base_label", "argument", ("iseq_body", "body_base_label")),
    Getter("rb_iseq_path", "argument", ("iseq_body", "body_path")),
    Getter("rb_iseq_first_lineno", "argument", ("iseq_body", "body_first_line")),
    Getter("rb_iseq_type", "argument", ("iseq_body", "body_type")),
    Getter(
        "rb_iseq_method_name",
        "argument",
        ("iseq_body", "body_local", "iseq_body", "body_base_label"),
    ),
    Getter("rb_iseq_original_iseq", "argument", ("iseq_body", "body_size")),
    Getter("rb_thread_current", EC, ("ec_thread", "th_self")),
    Getter("rb_thread_main", GLOBAL, ("ractor_main_thread", "th_self")),
    Getter(
        "rb_thread_main",
        EC,
        ("ec_thread", "th_vm", "vm_main_thread", "th_self"),
        unless="th_ractor",
    ),
    Getter("rb_current_receiver", EC, ("ec_cfp", "cfp_self")),
    # Of rb_fiber_t, whose first member has ``self`` behind two words.
    Getter("rb_fiber_current", EC, ("ec_fiber",), then=(16,)),
    Getter("rb_frame_this_func", CALLED, ("me_def", "def_original_id")),
    Getter("rb_frame_callee", CALLED, ("me_called_id",)),
    Getter("rb_frame_method_id_and_class", CALLED, ("me_owner",)),
    # Of struct METHOD, whose member ``me`` is the first load.
    Getter("rb_method_iseq", CALLED, ("me_def", "def_type"), skipped=1, width=1),
    Getter("rb_method_iseq", CALLED, ("me_def", "def_body"), skipped=1, width=8),
    Getter("rb_during_gc", GLOBAL, ("vm_objspace", "objspace_flags")),
)

_FIBER_GETTER = Getter("rb_fiber_alive_p", CALLED, ("fiber_status",))


@dataclass(frozen=True, slots=True)
class Mined:
    """What the getters say.

    agreed: fields that a getter loads where the layout has them
    offered: other offsets, by the names of their fields
    """

    agreed: frozenset[str]
    offered: Mapping[str, int]


def mine(ruby: Ruby, offsets: Offsets) -> Mined:
    """Compare ``offsets`` with what the getters of the binary load."""
    agreed: set[str] = set()
    others: dict[str, int] = {}
    for getter in GETTERS:
        expected = _expected(getter, offsets)
        if expected is None:
            continue
        found = list(found_by(ruby, getter))
        if expected in found:
            agreed |= _named(getter, expected).keys()
        elif found:
            nearest = min(found, key=lambda loads: _differences(loads, expected))
            others = {**_named(getter, nearest), **others}
    offered = {
        name: offset
        for name, offset in others.items()
        if name not in agreed and offset != getattr(offsets, name)
    }
    return Mined(frozenset(agreed), offered | _fiber(ruby, offsets))


def _differences(loads: tuple[int, ...], expected: tuple[int, ...]) -> int:
    return sum(one != other for one, other in zip(loads, expected, strict=True))


def _named(getter: Getter, loads: tuple[int, ...]) -> dict[str, int]:
    """The offsets that a getter loads by their fields' names."""
    named = dict(zip(getter.fields, loads, strict=True))
    if "objspace_flags" in named:
        bit = named["objspace_flags"]
        named["objspace_flags"] = bit // 32 * 4
        named["objspace_gc_bit"] = bit % 32
    return named


def _fiber(ruby: Ruby, offsets: Offsets) -> dict[str, int]:
    """Where ``rb_fiber_alive_p`` has a fiber's status, and so what stands before it.

    ``rb_fiber_t`` has a jmp_buf within, of 40 or of 200 bytes as Ruby was configured:
    it moves all that follows by the same number.
    """
    known = offsets.fiber_status
    found = [loads[0] for loads in found_by(ruby, _FIBER_GETTER)]
    if known is None or known in found:
        return {}
    for status in found:
        if 256 <= status < 1024 and status % 8 == 0:
            moved = {"fiber_status": status}
            if offsets.fiber_prev is not None:
                moved["fiber_prev"] = offsets.fiber_prev + status - known
            return moved
    return {}


def _expected(getter: Getter, offsets: Offsets) -> tuple[int, ...] | None:
    if getter.unless and getattr(offsets, getter.unless) is not None:
        return None
    values = [getattr(offsets, name) for name in getter.fields]
    if None in values:
        return None
    if getter.fields[-1] == "objspace_flags":
        if offsets.objspace_gc_bit is None:
            return None
        values[-1] = 8 * values[-1] + offsets.objspace_gc_bit
    return tuple(values)


def found_by(ruby: Ruby, getter: Getter) -> Iterator[tuple[int, ...]]:
    """Yield the offsets that might be those of the getter's fields."""
    with suppress(BadElf):
        address = ruby.address(getter.function)
        if address is None:
            return
        wants_bit = getter.fields[-1] == "objspace_flags"
        for chain in follow(ruby.code, address):
            # A flag is loaded, then its bit is shifted down.
            if bool(chain.shift) == wants_bit:
                loads = _of_fields(getter, chain)
                if loads is not None and wants_bit:
                    loads = (*loads[:-1], 8 * loads[-1] + chain.shift)
                if loads is not None:
                    yield loads


def _of_fields(getter: Getter, chain: Chain) -> tuple[int, ...] | None:
    """The part of a chain that is of the getter's fields, None if it has no such."""
    end = len(chain.loads) - len(getter.then)
    begin = end - len(getter.fields)
    if begin < 0 or chain.loads[end:] != getter.then:
        return None
    if getter.width not in (None, chain.width):
        return None
    if not _is_lead(getter, chain, begin):
        return None
    return chain.loads[begin:end]


def _is_lead(getter: Getter, chain: Chain, count: int) -> bool:
    """Are the first ``count`` loads what leads to the getter's fields?"""
    is_global = isinstance(chain.root, int)
    is_pointer = is_global and count in (1, 2) and not any(chain.loads[:count])
    if getter.root == "argument":
        return chain.root == "argument" and count == getter.skipped
    if getter.root == CALLED:
        return chain.root == "result" and count == getter.skipped
    if getter.root == GLOBAL:
        return is_pointer
    # From a global pointer up to 2.7; then local to the thread, through a call.
    return is_pointer or (chain.root in ("result", "thread") and count == 1)
