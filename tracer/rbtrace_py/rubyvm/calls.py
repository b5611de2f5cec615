"""Which calls an instruction can make: whether two frames can stand on one another.

A stack is read while it changes. Then a frame may be seen upon another that never
called it: an old one, not overwritten yet, upon a new one. Its caller's pc gives it
away: the instruction before it must be a call, of that method or of that block.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.rubyvm.iseqs import Iseq, Iseqs
from rbtrace_py.rubyvm.values import T_IMEMO, Values

_CACHED = 1 << 16
_CALLINFO_MID = 16
"""``rb_callinfo.mid`` after flags and kwarg (vm_callinfo.h, 3.0 and later)."""
_PACKED_MID_SHIFT = 32
"""CI_EMBED_ID_SHFT: in a packed ci the ID is the upper half."""

_INDIRECT = frozenset(
    ("send", "__send__", "call", "()", "yield", "===", "[]", "new", "!=", "!~")
)
"""Methods that run another one without a frame of their own."""

_IMPLICIT = frozenset(
    (
        *("to_ary", "to_a", "to_hash", "to_proc", "to_s", "to_str", "coerce"),
        *("hash", "eql?", "==", "===", "<=>", "default"),
        *("respond_to?", "respond_to_missing?", "method_missing", "const_missing"),
        *("inherited", "method_added", "singleton_method_added", "const_added"),
        "require",
    )
)
"""Methods that instructions call which name another one, or none: ``expandarray``,
``splatarray``, ``newhash``, ``newrange``, ``checkmatch``, a call with a ``&block``,
operators on Ruby's own types, ``defineclass``, ``definemethod``, ``setconstant``, and
what reads a constant that is autoloaded (insns.def, autoload_feature_require)."""


class CallSite(NamedTuple):
    """The instruction before a pc.

    mid: ID of the method it calls, 0 if it names none (``yield``, ``super``), None if
    it is no call; block: the iseq of the block given to it, if any; body: the iseq of
    the class body that it runs, if it is a ``defineclass``
    """

    mid: int | None
    block: int
    body: int = 0


_NO_CALL = CallSite(None, 0)


class CallSites:
    """Reads instructions by address, and keeps what they call; bounded."""

    def __init__(self, values: Values, iseqs: Iseqs) -> None:
        self._values = values
        self._iseqs = iseqs
        offsets = values.offsets
        self._mid = offsets.call_mid
        self._size = offsets.call_size or 0
        self.is_known = offsets.body_call_data is not None and self._size > 0
        self._sites: dict[int, CallSite] = {}

    def clear(self) -> None:
        """Forget all, as code may have been replaced."""
        self._sites.clear()

    def forget(self, pc: int) -> None:
        """Forget the instruction before ``pc``."""
        self._sites.pop(pc, None)

    def before(self, iseq: Iseq, pc: int) -> CallSite:
        """Return the instruction of ``iseq`` that ends at ``pc``."""
        known = self._sites.get(pc)
        if known is None:
            if len(self._sites) >= _CACHED:
                self._sites.clear()
            known = self._sites[pc] = self._read(iseq, pc)
        return known

    def _read(self, iseq: Iseq, pc: int) -> CallSite:
        """A call is ``[insn][call data]`` or ``[insn][call data][block]``, and
        ``defineclass`` is ``[insn][name][body][flags]``.

        What looks like the second may be a call and an instruction after it.
        """
        if pc - 16 < iseq.begin:
            return _NO_CALL
        try:
            first, second = struct.unpack("=2Q", self._values.memory.read(pc - 16, 16))
            if self._is_call_data(iseq, second):
                return CallSite(self._method_id(second), 0)
            if self._is_call_data(iseq, first) and self._is_block(second):
                return CallSite(self._method_id(first), second)
            if self._iseqs.get(first) is not None:
                return CallSite(None, 0, first)
        except UnreadableMemory:
            return _NO_CALL
        return _NO_CALL

    def _is_call_data(self, iseq: Iseq, word: int) -> bool:
        words = (iseq.end - iseq.begin) // 8
        has_any = iseq.call_data != 0
        return has_any and 0 <= word - iseq.call_data < words * self._size

    def _is_block(self, word: int) -> bool:
        return word == 0 or self._iseqs.get(word) is not None

    def _method_id(self, data: int) -> int | None:
        values = self._values
        if self._mid is not None:
            return values.u64(data + self._mid)
        info = values.u64(data)
        if info & 1:
            return info >> _PACKED_MID_SHIFT
        if values.type_of(info) != T_IMEMO:
            return None
        return values.u64(info + _CALLINFO_MID)

    def can_call(self, site: CallSite, number: int, name: str) -> bool:
        """Can this instruction have called the method ``name`` (its ID ``number``)?"""
        if name in _IMPLICIT or site.mid in (0, number):
            return True
        if site.mid is None:
            return False
        called = self._values.id_name(site.mid)
        return called == name or called in _INDIRECT

    def can_yield(self, site: CallSite) -> bool:
        """Can this instruction have run a block?"""
        if not site.mid:
            return site.mid == 0
        return self._values.id_name(site.mid) in _INDIRECT
