"""Ruby's values in a target's memory: strings, symbols, arrays, tables, class names.

The target is not trusted: all data is checked, and its size is limited. Texts are safe
to print. Invalid data gives None, not a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from rbtrace_py.linux.memory import Memory
from rbtrace_py.linux.text import safe_text
from rbtrace_py.rubyvm.consistency import Consistency
from rbtrace_py.rubyvm.layout import Layout, StringStyle, ThreadList

T_OBJECT, T_CLASS, T_MODULE, T_STRING = 0x01, 0x02, 0x03, 0x05
T_ARRAY, T_SYMBOL, T_IMEMO, T_ICLASS = 0x07, 0x14, 0x1A, 0x1C
T_FLOAT, T_FILE, T_DATA, T_RATIONAL = 0x04, 0x0B, 0x0C, 0x0F
_TYPE_MASK = 0x1F
"""RUBY_T_MASK (include/ruby/internal/value_type.h)."""

_IMEMO_SHIFT = 12
"""Shift of the imemo_type: FL_USHIFT (internal/imemo.h)."""

_NOEMBED = 1 << 13
"""RSTRING_NOEMBED: FL_USER1."""
_ARRAY_EMBEDDED = 1 << 13
"""RARRAY_EMBED_FLAG: FL_USER1."""

_EMBEDDED = 1
"""TYPED_DATA_EMBEDDED: a flag in the pointer to a typed object's type, which precedes
the data (rtypeddata.h of 4.0 and later)."""

_FLONUM = 2
"""RUBY_FLONUM_FLAG: a 64-bit Float in the VALUE."""
_ZERO = 0x8000000000000002
"""The Float 0.0, which the rotation cannot represent."""

_LONGEST_TEXT = 4096
LONGEST_NAME = 1024
"""Maximum bytes of a class's or a method's name."""
_LONGEST_ARRAY = 1 << 22
_LARGEST_TABLE = 1 << 16

_IDS_PER_ARRAY = 512
"""ID_ENTRY_UNIT (symbol.c); an entry consists of the string and the symbol."""
_IDS_CACHED = 1 << 16
_TEXT_CACHED = 1 << 24
"""Maximum characters of all names."""

_U32 = struct.Struct("=I")
_U64 = struct.Struct("=Q")
_DELETED_HASH = (1 << 64) - 1
"""RESERVED_HASH_VAL: a deleted entry of an st_table (st.c)."""


class Values:
    """Reads values by address.

    Raises UnreadableMemory for unmapped memory, which a walk over a changing structure
    may encounter, and NoSuchTarget once the process is gone.
    """

    def __init__(self, memory: Memory, layout: Layout, symbols: int | None) -> None:
        self.memory = memory
        self.layout = layout
        self.traits = layout.traits
        self.offsets = layout.offsets
        self.consistency = Consistency()
        self._symbols = symbols
        self._names: dict[int, str] = {}
        self._text = 0
        self._strings: dict[int, int] | None = None
        self._is_old = layout.traits.old_tables

    def u64(self, address: int) -> int:
        """Return the word at ``address``."""
        value: int = _U64.unpack(self.memory.read(address, 8))[0]
        return value

    def u32(self, address: int) -> int:
        """Return the 4-byte unsigned number at ``address``."""
        value: int = _U32.unpack(self.memory.read(address, 4))[0]
        return value

    def is_object(self, value: int) -> bool:
        """Return whether ``value`` looks like an object's address (special_const_p)."""
        return value & 7 == 0 and value > 0x1000 and value != self.traits.qnil

    def type_of(self, value: int) -> int | None:
        """Return T_STRING and the like, or None if it is not an object."""
        return self.u64(value) & _TYPE_MASK if self.is_object(value) else None

    def imemo_kind(self, value: int) -> int | None:
        """Return the imemo's kind (``ment`` …), or None if it is not an imemo."""
        return self.imemo_kind_of(self.u64(value)) if self.is_object(value) else None

    def imemo_kind_of(self, flags: int) -> int | None:
        """Return the kind of the imemo with these flags, or None."""
        if flags & _TYPE_MASK != T_IMEMO:
            return None
        return flags >> _IMEMO_SHIFT & self.traits.imemo_mask

    @property
    def imemo_mask(self) -> int:
        """The bits of an object's flags that identify an imemo and its kind."""
        return _TYPE_MASK | self.traits.imemo_mask << _IMEMO_SHIFT

    def imemo_flags(self, kind: int) -> int:
        """Return the value of these bits for an imemo of a kind."""
        return T_IMEMO | kind << _IMEMO_SHIFT

    def string(self, value: int, limit: int = _LONGEST_TEXT) -> str | None:
        """Return a String as safe text, cut at ``limit`` bytes."""
        data = self.string_bytes(value, limit)
        return None if data is None else safe_text(data, limit)

    def string_bytes(self, value: int, limit: int = _LONGEST_TEXT) -> bytes | None:
        """Return a String's bytes, cut at ``limit``; None if it is not a String."""
        if not self.is_object(value):
            return None
        flags, _, word, pointer = struct.unpack("=4Q", self.memory.read(value, 32))
        if flags & _TYPE_MASK != T_STRING:
            return None
        old = self.traits.string_style is StringStyle.LENGTH_IN_FLAGS
        length, place = word, pointer
        if not flags & _NOEMBED:
            length = flags >> 14 & 31 if old else word
            place = value + (16 if old else 24)
        return self.memory.read(place, min(length, limit)) if length else b""

    def number(self, value: int) -> int | float | None:
        """Return an Integer of at most 62 bits or a Float; None for other values."""
        if value & 1:
            return (value - (1 << 64) if value >> 63 else value) >> 1
        if value & 3 == _FLONUM:
            return _flonum(value)
        if self.type_of(value) == T_FLOAT:
            found: float = struct.unpack("=d", self.memory.read(value + 16, 8))[0]
            return found
        return None

    def real(self, value: int) -> float | None:
        """Return an Integer, Float, or Rational of Integers; None for other values."""
        if self.type_of(value) != T_RATIONAL:
            found = self.number(value)
            return None if found is None else float(found)
        # struct RRational (internal/rational.h)
        parts = map(self.number, (self.u64(value + 16), self.u64(value + 24)))
        numerator, denominator = parts
        return (
            numerator / denominator if numerator is not None and denominator else None
        )

    def structure(self, value: int) -> int:
        """Return the address of a typed object's C structure, or 0 if it has none."""
        offset = self.offsets.data_pointer
        if offset is None or self.type_of(value) != T_DATA:
            return 0
        is_embedded = self.traits.data_may_be_embedded and (
            self.u64(value + offset - 8) & _EMBEDDED
        )
        return value + offset if is_embedded else self.u64(value + offset)

    def descriptor(self, value: int) -> int | None:
        """Return an IO's descriptor; None if it is not an open IO."""
        fd = self._io_member(value, self.offsets.io_fd)
        return fd if fd is not None and fd >= 0 else None

    def child(self, value: int) -> int | None:
        """Return the pid of the process that IO.popen started, or None."""
        return self._io_member(value, self.offsets.io_pid) or None

    def _io_member(self, value: int, member: int | None) -> int | None:
        """Return an int of ``rb_io_t``; None if it is not an open IO."""
        offset = self.offsets.file_io
        if offset is None or member is None or self.type_of(value) != T_FILE:
            return None
        io = self.u64(value + offset)
        if not io:
            return None
        found: int = struct.unpack("=i", self.memory.read(io + member, 4))[0]
        return found

    def array(self, value: int) -> tuple[int, int] | None:
        """Return an Array's address and number of elements; None if not an Array."""
        if not self.is_object(value):
            return None
        flags, _, length, _, pointer = struct.unpack("=5Q", self.memory.read(value, 40))
        if flags & _TYPE_MASK != T_ARRAY:
            return None
        if flags & _ARRAY_EMBEDDED:
            return (value + 16, flags >> 15 & 0x7F)
        return (pointer, length) if length <= _LONGEST_ARRAY else None

    def element(self, value: int, index: int) -> int | None:
        """Return an Array's element, or None beyond its end."""
        found = self.array(value)
        if found is None or not 0 <= index < found[1]:
            return None
        return self.u64(found[0] + 8 * index)

    def id_name(self, number: int) -> str | None:
        """Return the text of an ID, from the global symbol table."""
        known = self._names.get(number)
        if known is not None:
            return known
        value = self._id_string(number)
        name = None if value is None else self.string(value, LONGEST_NAME)
        if name is not None:
            self._text += len(name)
            if len(self._names) >= _IDS_CACHED or self._text > _TEXT_CACHED:
                self._names.clear()
                self._text = len(name)
            self._names[number] = name
        return name

    def _id_string(self, number: int) -> int | None:
        if self._symbols is None:
            return None
        if self.traits.thread_list is ThreadList.ST_TABLE:
            return self._string_of_id(number)
        serial = number
        if number > self.traits.last_operator_id:
            serial = number >> self.traits.symbol_shift
        place = self._symbols
        if not 0 < serial <= self.u32(place + self.offsets.symbols_last_id):
            return None
        arrays = self.u64(place + self.offsets.symbols_ids)
        number = serial // _IDS_PER_ARRAY
        entries = self.element(arrays, number)
        if entries is None and self.traits.symbols_in_data:
            entries = self._data_element(arrays, number)
        if entries is None:
            return None
        if self.traits.symbols_in_data:
            return self._string_in_data(entries, serial % _IDS_PER_ARRAY)
        return self.element(entries, serial % _IDS_PER_ARRAY * 2)

    def _data_element(self, value: int, index: int) -> int | None:
        """Return an entry of ``struct id_entry_dir``, a number and a pointer, which
        replaces an Array (symbol.c of 4.1, from August 2026)."""
        data = self.structure(value)
        if not data or index >= self.u64(data):
            return None
        return self.u64(self.u64(data + 8) + 8 * index)

    def _string_in_data(self, entries: int, place: int) -> int | None:
        """Return the string of one ``struct sym_id_entry`` in an rb_darray, which
        begins with its size and its capacity (4.1, symbol.c and darray.h)."""
        data = self.structure(entries)
        if not data or place >= self.u64(data):
            return None
        return self.u64(data + 16 + 16 * place + 8)

    def _string_of_id(self, number: int) -> int | None:
        """Look up a string of 2.1 in the st_table ``global_symbols.id_str``."""
        if self._strings is None:
            place = (self._symbols or 0) + self.offsets.symbols_ids
            self._strings = dict(self.st_table(self.u64(place)))
        return self._strings.get(number)

    def st_table(
        self, address: int, most: int = _LARGEST_TABLE
    ) -> Iterator[tuple[int, int]]:
        """Yield keys and values of an st_table; nothing if it claims to have more."""
        if self._is_old:
            return self._old_table(address, most)
        return self._table(address, most)

    def _table(self, address: int, most: int) -> Iterator[tuple[int, int]]:
        """Read ``struct st_table`` of 2.4 or later: entries from start to bound."""
        start, bound, entries = struct.unpack("=3Q", self.memory.read(address + 32, 24))
        count = bound - start
        if not 0 < count <= most:
            return
        data = self.memory.read(entries + 24 * start, 24 * count)
        for hashed, key, value in struct.iter_unpack("=3Q", data):
            if hashed != _DELETED_HASH:
                yield key, value

    def _old_table(self, address: int, most: int) -> Iterator[tuple[int, int]]:
        """Read ``struct st_table`` of 2.1 to 2.3: packed rows, or a list of entries."""
        count, first, second = struct.unpack("=3Q", self.memory.read(address + 16, 24))
        total = count >> 1
        if not 0 < total <= most:
            return
        if count & 1:
            data = self.memory.read(second if first == 0 else first, 24 * total)
            for key, value, _ in _packed_rows(data):
                yield key, value
            return
        # In 2.1: bins, head, tail. Since 2.2: bins, and a list_head of nodes that are
        # in the entries, after hash, key, record, and next.
        is_plain = self.traits.thread_list is ThreadList.ST_TABLE
        entry = second
        for _ in range(total):
            if entry in (0, address + 32):
                return
            start = entry if is_plain else entry - 32
            _, key, value, _, entry = struct.unpack("=5Q", self.memory.read(start, 40))
            yield key, value


def _flonum(value: int) -> float:
    """Rotate a Float back and restore its exponent's two highest bits (numeric.h)."""
    if value == _ZERO:
        return 0.0
    bits = (2 - (value >> 63)) | (value & ~3)
    bits = (bits >> 3 | bits << 61) & (1 << 64) - 1
    found: float = struct.unpack("=d", struct.pack("=Q", bits))[0]
    return found


def _packed_rows(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (key, value, hash) of a packed st_table's rows (hash, key, value)."""
    for hashed, key, value in struct.iter_unpack("=3Q", data):
        yield key, value, hashed
