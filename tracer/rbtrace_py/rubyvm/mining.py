"""A cross-check of a layout: what the code of exported getters loads.

``rb_iseq_label`` is compiled to two loads, and their offsets are those of two members.
So each attach can ask the binary itself whether a table is right for it, which costs
about a millisecond. A getter that a compiler made in another way says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from rbtrace_py.errors import BadElf
from rbtrace_py.rubyvm.detect import Ruby
from rbtrace_py.rubyvm.flow import Chain, follow
from rbtrace_py.rubyvm.layout import Layout, Offsets, Origin

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

INDEX_GETTER = Getter(
    "rb_iseq_insns_info_encode_positions",
    "argument",
    ("iseq_body", "body_line_positions"),
)
"""Long, so it is read only by who needs it."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A getter that loads something else than a layout says."""

    function: str
    fields: tuple[str, ...]
    expected: tuple[int, ...]
    found: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{self.function} reads {_offsets(self.found)} where the layout has"
            f" {_offsets(self.expected)} ({', '.join(self.fields)})"
        )


@dataclass(frozen=True, slots=True)
class Mined:
    """What the getters say to a layout: fields that agree, and who disagrees."""

    agreed: frozenset[str]
    disagreements: tuple[Disagreement, ...]


def cross_check(ruby: Ruby, offsets: Offsets) -> Mined:
    """Compare ``offsets`` with what the getters of the binary load."""
    agreed: set[str] = set()
    disagreements = []
    for getter in GETTERS:
        expected = _expected(getter, offsets)
        if expected is None:
            continue
        verdict = _ask(ruby, getter, expected)
        if verdict is True:
            agreed.update(getter.fields)
            if getter.fields[-1] == "objspace_flags":
                agreed.add("objspace_gc_bit")
        elif verdict is not None:
            disagreements.append(verdict)
    return Mined(frozenset(agreed), tuple(disagreements))


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


def _ask(
    ruby: Ruby, getter: Getter, expected: tuple[int, ...]
) -> Disagreement | Literal[True] | None:
    """True if the getter loads ``expected``; None if it says nothing."""
    first: tuple[int, ...] | None = None
    for found in found_by(ruby, getter):
        if found == expected:
            return True
        first = first or found
    if first is None:
        return None
    return Disagreement(getter.function, getter.fields, expected, first)


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


def _offsets(values: tuple[int, ...]) -> str:
    return " then ".join(map(str, values))


def mine_flag(ruby: Ruby) -> Mapping[str, int]:
    """Return where ``during_gc`` is: vm_objspace, objspace_flags, objspace_gc_bit.

    Empty where ``rb_during_gc`` does not say.
    """
    getter = next(g for g in GETTERS if g.function == "rb_during_gc")
    for objspace, bit in found_by(ruby, getter):
        return {
            "vm_objspace": objspace,
            "objspace_flags": bit // 32 * 4,
            "objspace_gc_bit": bit % 32,
        }
    return {}


def refine(ruby: Ruby, layout: Layout) -> Layout:
    """Correct what depends on how a Ruby was configured, not only on its version.

    ``rb_fiber_t`` has a jmp_buf within, of 40 or of 200 bytes: what stands after it is
    moved by what ``rb_fiber_alive_p`` says.
    """
    known = layout.offsets.fiber_status
    if known is None:
        return layout
    loads = [loads[0] for loads in found_by(ruby, _FIBER_GETTER)]
    if known in loads:
        return layout
    for status in loads:
        if not 256 <= status < 1024 or status % 8:
            continue
        moved = {"fiber_status": status}
        if layout.offsets.fiber_prev is not None:
            moved["fiber_prev"] = layout.offsets.fiber_prev + status - known
        origins = {**layout.origins, **dict.fromkeys(moved, Origin.MINED)}
        offsets = replace(layout.offsets, **moved)
        return replace(layout, offsets=offsets, origins=origins)
    return layout
