"""Call sites: whether one frame can have called another.

A stack may change while it is read. Then an old frame that was not overwritten yet may
appear above a new frame that never called it. The new frame's pc reveals this: the
instruction before it must call that method or block.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from rbtrace_py.errors import UnreadableMemory
from rbtrace_py.rubyvm.iseqs import Iseq, Iseqs
from rbtrace_py.rubyvm.names import Names
from rbtrace_py.rubyvm.values import T_IMEMO, Values

_CACHED = 1 << 16
_MOST_ALIASES = 1 << 10
_CALLINFO_MID = 16
"""``rb_callinfo.mid``, after flags and kwarg (vm_callinfo.h, 3.0 and later)."""
_PACKED_MID_SHIFT = 32
"""CI_EMBED_ID_SHFT: in a packed ci, the ID is the upper half."""

_INDIRECT = frozenset(
    ("send", "__send__", "call", "()", "yield", "===", "[]", "new", "!=", "!~")
)
"""Methods that call another method without a frame of their own. So do their aliases:
Rails calls each action by an alias of ``send``."""

_IMPLICIT = frozenset(
    (
        *("to_ary", "to_a", "to_hash", "to_proc", "to_s", "to_str", "coerce"),
        *("hash", "eql?", "==", "===", "<=>", "default"),
        *("respond_to?", "respond_to_missing?", "method_missing", "const_missing"),
        *("inherited", "method_added", "singleton_method_added", "const_added"),
        "require",
    )
)
"""Methods called by instructions that name another method or none: ``expandarray``,
``splatarray``, ``newhash``, ``newrange``, ``checkmatch``, a call with a ``&block``,
operators on Ruby's own types, ``defineclass``, ``definemethod``, ``setconstant``, and
reads of an autoloaded constant (insns.def, autoload_feature_require)."""


class CallSite(NamedTuple):
    """The instruction before a pc.

    Attributes:
        mid: ID of the called method; 0 if it names none (``yield``, ``super``); None if
            it is not a call.
        block: Iseq of the block that is passed, if any.
        body: Iseq of the class body that a ``defineclass`` runs.
        data: Address of its call data.
    """

    mid: int | None
    block: int
    body: int = 0
    data: int = 0


_NO_CALL = CallSite(None, 0)


class CallSites:
    """Reads call sites by the address of the next instruction; the cache is bounded."""

    def __init__(self, values: Values, iseqs: Iseqs, names: Names) -> None:
        self._values = values
        self._iseqs = iseqs
        self._names = names
        offsets = values.offsets
        self._mid = offsets.call_mid
        self._size = offsets.call_size or 0
        self.is_known = offsets.body_call_data is not None and self._size > 0
        self._sites: dict[int, CallSite] = {}
        self._aliases: set[int] = set()

    def clear(self) -> None:
        """Forget all call sites, because code may have been replaced."""
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
        """Decode a call or a ``defineclass``.

        A call is ``[insn][call data]`` or ``[insn][call data][block]``. ``defineclass``
        is ``[insn][name][body][flags]``. The form with a block is tried first: a block
        may look like call data, but an instruction does not.
        """
        if pc - 16 < iseq.begin:
            return _NO_CALL
        try:
            first, second = struct.unpack("=2Q", self._values.memory.read(pc - 16, 16))
            if self._is_call_data(iseq, first) and self._is_block(second):
                return CallSite(self._method_id(first), second, data=first)
            if self._is_call_data(iseq, second):
                return CallSite(self._method_id(second), 0, data=second)
            if self._iseqs.get(first) is not None:
                return CallSite(None, 0, first)
        except UnreadableMemory:
            return _NO_CALL
        return _NO_CALL

    def _is_call_data(self, iseq: Iseq, word: int) -> bool:
        """Return whether a word may be call data of the iseq.

        Only an upper bound of their number is known, and objects may follow directly.
        """
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
        """Return whether this instruction can have called the method."""
        if name in _IMPLICIT or site.mid in (0, number):
            return True
        if site.mid is None:
            return False
        called = self._values.id_name(site.mid)
        return called == name or self._is_indirect(site)

    def can_yield(self, site: CallSite) -> bool:
        """Return whether this instruction can have run a block."""
        return site.mid == 0 or self._is_indirect(site)

    def _is_indirect(self, site: CallSite) -> bool:
        """Return whether this instruction calls one of ``_INDIRECT``, or an alias.

        A collection empties the call caches (3.4 and later). A method that was once
        seen to be such an alias is therefore considered one at every call.
        """
        if not site.mid:
            return False
        if self._values.id_name(site.mid) in _INDIRECT or site.mid in self._aliases:
            return True
        is_alias = self._calls_alias(site)
        if is_alias and len(self._aliases) < _MOST_ALIASES:
            self._aliases.add(site.mid)
        return is_alias

    def _calls_alias(self, site: CallSite) -> bool:
        """Return whether the last method called here was an alias of ``_INDIRECT``.

        The call cache contains the method entry, whose definition has the original
        name. A ``super`` that was run has the name of its own method.
        """
        offsets, values = self._values.offsets, self._values
        if offsets.call_me is None or not site.data:
            return False
        cache = site.data
        try:
            if offsets.call_cache is not None:
                cache = values.u64(cache + offsets.call_cache)
            called = self._names.method(values.u64(cache + offsets.call_me))
        except UnreadableMemory:
            return False
        return called is not None and called.name in _INDIRECT
