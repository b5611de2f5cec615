"""Where a control frame and a method entry have what a walker asks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rbtrace_py.rubyvm.calibration.given import (
    Found,
    Given,
    View,
    failed,
    offset_where,
    sure,
)
from rbtrace_py.rubyvm.calibration.iseqs import Iseqs, imemo_kind
from rbtrace_py.rubyvm.calibration.threads import Context
from rbtrace_py.rubyvm.layout import Traits
from rbtrace_py.rubyvm.roots import is_pointer

_DEPTH = 9
"""Frames of ``recurse``, the last of which has stopped its thread."""
_TYPE, _ICLASS = 0x1F, 0x1C
_ENTRY = 64
_DEFINITION = 128
_METHOD = 128

_KINDS = {
    "method_recurse": 0, "method_c": 1, "method_writer": 2, "method_reader": 3,
    "method_defined_by_block": 4,
}  # fmt: skip
"""rb_method_type_t: ISEQ, CFUNC, ATTRSET, IVAR, BMETHOD (method.h)."""


@dataclass(slots=True)
class Frames:
    """What was found, and the kind of imemo a method entry is."""

    found: Found
    ment_imemo: int


class FrameSearch:
    """Finds the fields of frames on the stack of the thread in known methods."""

    def __init__(
        self, view: View, given: Given, iseqs: Iseqs, context: Context, traits: Traits
    ) -> None:
        self.view = view
        self.given = given
        self.iseqs = iseqs
        self.context = context
        self.traits = traits
        self.found: Found = {}

    def run(self) -> Frames:
        """Find all; raises UnknownRuby."""
        self.recursing = self._control_frames()
        self._self()
        self._environments()
        self._stack_pointers()
        self._code()
        self._check_magics()
        self._method_entries()
        return Frames(self.found, self.ment_imemo)

    def _control_frames(self) -> list[int]:
        """The frames of ``recurse``, innermost first: their iseq comes regularly."""
        begin, words = self.context.cfp, self._stack_words()
        wanted = self.iseqs.addresses["recurse"]
        places = [8 * i for i, word in enumerate(words) if word == wanted]
        for size in range(40, 128, 8):
            for first in places:
                run = [first + i * size for i in range(_DEPTH)]
                if set(run) <= set(places):
                    self.found["cfp_size"] = size
                    self.found["cfp_iseq"] = first % size
                    return [begin + at - first % size for at in run]
        raise failed("control frames were not found")

    def _stack_words(self) -> Sequence[int]:
        size = self.context.end - self.context.cfp
        return self.view.words(self.context.cfp, size // 8)

    def _where(self, what: str, test: Callable[[int, int], bool]) -> int:
        size = self.found["cfp_size"]
        return sure(offset_where(size, 8, self.recursing, test), what)

    def _self(self) -> None:
        hosts = [self.given.values[f"host_{i}"] for i in range(_DEPTH)]
        self.found["cfp_self"] = self._where(
            "the receivers of frames", lambda i, at: self.view.word(at) == hosts[i]
        )

    def _on_stack(self, at: int) -> bool:
        return self.context.stack < at < self.context.cfp and at % 8 == 0

    def _environments(self) -> None:
        """From 2.4 on flags are in ``ep[0]``, the method entry in ``ep[-2]``."""

        def is_environment(_: int, place: int) -> bool:
            at = self.view.word(place)
            if not self._on_stack(at):
                return False
            flags, entry = self.view.word(at), self.view.word(at - 16)
            is_entry = imemo_kind(self.view, entry) == self.traits.ment_imemo
            return flags & 1 == 1 and not flags >> 32 and is_entry

        if not (self.traits.flags_in_ep and self.traits.method_in_ep):
            raise failed("its frames are older than those that can be found")
        self.found["cfp_ep"] = self._where("environments", is_environment)
        self.ment_imemo = self.traits.ment_imemo or 0

    def _ep(self, frame: int) -> int:
        return self.view.word(frame + self.found["cfp_ep"])

    def _stack_pointers(self) -> None:
        """Above the environment; more than a word above it, as operands wait there."""
        callers = self.recursing[1:]

        def is_top(i: int, place: int) -> bool:
            at = self.view.word(place)
            above = at - self._ep(callers[i])
            return self._on_stack(at) and 8 < above < 256

        offset = offset_where(self.found["cfp_size"], 8, callers, is_top)
        self.found["cfp_sp"] = sure(offset, "stack pointers")

    def _code(self) -> None:
        """Program counters are in the code of their frame's iseq."""
        names = ("recurse", "in_module", "original")
        frames = [self.recursing[1], *map(self._frame_of, names[1:])]
        bodies = [self.iseqs.bodies[name] for name in names]
        sizes = [
            8 * self.view.u32(body + self.iseqs.found["body_size"]) for body in bodies
        ]
        for offset in range(0, self.found["cfp_size"], 8):
            counters = [self.view.word(frame + offset) for frame in frames]
            encoded = self._encoded(bodies, counters, sizes)
            if encoded is not None:
                self.found["cfp_pc"] = offset
                self.iseqs.found["body_encoded"] = encoded
                return
        raise failed("program counters were not found")

    def _encoded(
        self, bodies: Sequence[int], counters: Sequence[int], sizes: Sequence[int]
    ) -> int | None:
        """Where bodies point to code, if the counters are in there."""
        return offset_where(
            256,
            8,
            bodies,
            lambda i, at: 0 < counters[i] - self.view.word(at) <= sizes[i],
        )

    def _frames(self) -> Iterator[int]:
        at = self.context.cfp
        while at < self.context.end:
            yield at
            at += self.found["cfp_size"]

    def _frame_of(self, name: str) -> int:
        """The frame of the method called ``name``."""
        wanted = self.iseqs.addresses[name]
        for frame in self._frames():
            if self.view.word(frame + self.found["cfp_iseq"]) == wanted:
                return frame
        raise failed(f"the frame of {name} was not found")

    def _check_magics(self) -> None:
        """Do frames of known kinds have the types that the traits say?"""
        magics, mask = self.traits.frame_magics, self.traits.frame_magic_mask
        leaf = self.view.word(self._ep(self.context.cfp))
        method = self.view.word(self._ep(self.recursing[0]))
        dummy = self.context.end - self.found["cfp_size"]
        kinds = {
            "METHOD": method,
            "CFUNC": leaf,
            "BLOCK": self.view.word(self._ep(self._before(self._frame_of("original")))),
            "DUMMY": self.view.word(self._ep(dummy)),
        }
        for kind, flags in kinds.items():
            if kind in magics and flags & mask != magics[kind]:
                raise failed(f"frames of type {kind} have another type than is known")

    def _before(self, frame: int) -> int:
        """The frame that called this one."""
        return frame + self.found["cfp_size"]

    def _entry(self, name: str) -> int:
        """The method entry of a frame, from ``ep[-2]``."""
        return self.view.word(self._ep(self._frame_of(name)) - 16)

    def _method_entries(self) -> None:
        view, found, values = self.view, self.found, self.given.values
        plain, inherited = self._entry("recurse"), self._entry("in_module")
        host, module = values["class_host"], values["module"]
        entries = [plain, inherited]
        owners = [host, module]
        found["me_flags"] = 0
        found["me_owner"] = sure(
            offset_where(_ENTRY, 8, entries, lambda i, at: view.word(at) == owners[i]),
            "the owners of methods",
        )
        found["me_defined_class"] = sure(
            offset_where(
                _ENTRY,
                8,
                entries,
                lambda i, at: self._is_defined_class(view.word(at), i, host),
            ),
            "the classes of methods",
        )
        self._definitions(plain)

    def _is_defined_class(self, value: int, i: int, host: int) -> bool:
        """The class, or of a module's method what stands for the module in it."""
        if i == 0:
            return value == host
        return is_pointer(value) and self.view.word(value) & _TYPE == _ICLASS

    def _definitions(self, plain: int) -> None:
        """Called by another name than it was defined with: an alias."""
        view, found = self.view, self.found
        aliased, original = (
            self.given.values[f"symbol_{name}"] >> 8 for name in ("aliased", "original")
        )
        entry = self._entry("original")
        called = offset_where(
            _ENTRY, 8, [entry], lambda _, at: view.word(at) == aliased
        )
        found["me_called_id"] = sure(called, "the names methods are called by")
        iseqs = [self.iseqs.addresses[name] for name in ("recurse", "original")]
        for offset in range(8, _ENTRY, 8):
            places = [view.word(one + offset) for one in (plain, entry)]
            body = offset_where(
                _DEFINITION, 8, places, lambda i, at: view.word(at) == iseqs[i]
            )
            name = offset_where(
                _DEFINITION, 8, places[1:], lambda _, at: view.word(at) == original
            )
            if body is not None and name is not None:
                found["me_def"], found["def_body"] = offset, body
                found["def_original_id"] = name
                self._definition_types()
                return
        raise failed("the definitions of methods were not found")

    def _definition_types(self) -> None:
        """By Method objects: attribute readers and the like have no frames."""
        values = [self.given.values[name] for name in _KINDS]
        place = self.found["me_def"]
        definitions = [self.view.word(at + place) for at in self._entries_of(values)]
        wanted = list(_KINDS.values())
        kind = offset_where(
            64,
            1,
            definitions,
            lambda i, at: (self.view.read(at, 1) or b"\xff")[0] & 15 == wanted[i],
        )
        self.found["def_type"] = sure(kind, "the types of methods")

    def _entries_of(self, values: Sequence[int]) -> list[int]:
        """The entries of Methods, the first that of ``recurse``.

        struct METHOD is in the object (3.3 and later) or behind a pointer in it.
        """
        known = self.view.word(self._entry("recurse") + self.found["me_def"])
        behind = [
            [self.view.word(value + offset) for value in values]
            for offset in range(16, 56, 8)
        ]
        for structures in (*behind, list(values)):
            for offset in range(0, _METHOD, 8):
                entries = [self.view.word(at + offset) for at in structures]
                kinds = {imemo_kind(self.view, entry) for entry in entries}
                first = self.view.word(entries[0] + self.found["me_def"])
                if kinds == {self.ment_imemo} and first == known:
                    return entries
        raise failed("the entries of Methods were not found")
