"""The two addresses from which all structures of a VM are reached.

They are the VM's structure, by its pointer's symbol or through the code of an exported
function; and the symbol table (method names), by its symbol or by its shape.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rbtrace_py.errors import UnknownRuby, UnreadableMemory, VmNotStarted
from rbtrace_py.linux.memory import Memory
from rbtrace_py.rubyvm.detect import Ruby
from rbtrace_py.rubyvm.mining import pointer_in

_WORD = struct.Struct("<Q")
_LOWEST = 0x10000
_HIGHEST = 1 << 47

VM_POINTERS = ("ruby_current_vm_ptr", "ruby_current_vm")
"""``rb_vm_t *``: since 2.5, and before."""

SYMBOL_TABLES = ("ruby_global_symbols", "global_symbols")
"""``rb_symbols_t``, static (symbol.c): since 2.7, and before."""


@dataclass(frozen=True, slots=True)
class Root:
    """An address in the process, and a description of how it was found."""

    address: int
    origin: str


def is_pointer(value: int) -> bool:
    """Return whether a value may be the address of a structure in user space."""
    return _LOWEST <= value < _HIGHEST and value % 8 == 0


def read_word(memory: Memory, address: int) -> int:
    """Return the 8 bytes at ``address``; raises UnreadableMemory."""
    return int(_WORD.unpack(memory.read(address, 8))[0])


def find_vm(memory: Memory, ruby: Ruby) -> Root:
    """Return the address of the process's ``rb_vm_t``.

    Raises:
        VmNotStarted: The pointer to it is still null.
        UnknownRuby: The pointer was not found or is invalid.
        UnreadableMemory: Memory cannot be read.
    """
    pointer = find_vm_pointer(memory, ruby)
    address = read_word(memory, pointer.address)
    if address == 0:
        raise VmNotStarted(
            f"the Ruby in {ruby.path} is still starting its VM", "Try again"
        )
    if not is_pointer(address):
        raise UnknownRuby(
            f"the pointer to the VM, from {pointer.origin}, is {address:#x}",
            "Give its address with --symbol, or use a Ruby with symbols",
        )
    return Root(address, pointer.origin)


def find_vm_pointer(memory: Memory, ruby: Ruby) -> Root:
    """Return the address of the pointer to the VM; raises UnknownRuby."""
    for name in VM_POINTERS:
        address = ruby.address(name)
        if address is not None:
            return Root(address, name)
    pointer = _pointer_in_code(memory, ruby)
    if pointer is None:
        raise UnknownRuby(
            f"{ruby.path} is stripped, and the pointer to the VM was not found",
            "Install its debug symbols",
        )
    return Root(pointer, "the code of ruby_vm_at_exit")


def _pointer_in_code(memory: Memory, ruby: Ruby) -> int | None:
    """``ruby_vm_at_exit`` (vm.c) begins with ``rb_vm_t *vm = GET_VM()``.

    It loads the pointer itself (3.3 and later, where it is hidden), or its address from
    a slot of the GOT.
    """
    found = pointer_in(ruby, "ruby_vm_at_exit")
    if found is None:
        return None
    address, is_slot = found
    return read_word(memory, address) if is_slot else address


def find_object_class(memory: Memory, ruby: Ruby) -> int | None:
    """Return the address of the class ``Object``, or None if unknown."""
    address = ruby.address("rb_cObject")
    try:
        value = 0 if address is None else read_word(memory, address)
    except UnreadableMemory:
        return None
    return value if is_pointer(value) else None


def find_symbols(memory: Memory, ruby: Ruby) -> Root | None:
    """Return the address of the symbol table, or None if not found."""
    for name in SYMBOL_TABLES:
        address = ruby.address(name)
        if address is not None:
            return Root(address, name)
    return symbols_by_shape(memory, ruby.data)


def symbols_by_shape(memory: Memory, regions: Sequence[tuple[int, int]]) -> Root | None:
    """Search the symbol table in .data and .bss, given as (address, size)."""
    for address in _candidates(memory, regions):
        if _resolves(memory, address):
            return Root(address, "its shape in .bss")
    return None


def old_symbols_by_shape(
    memory: Memory, regions: Sequence[tuple[int, int]]
) -> Root | None:
    """Search 2.1's symbol table: {last_id, sym_id, id_str}, two st_tables (parse.c).

    Both have one entry per symbol, so their sizes are equal.
    """
    for address in _candidates(memory, regions):
        try:
            tables = [read_word(memory, address + offset) for offset in (8, 16)]
            sizes = {_table_size(memory, table) for table in tables}
        except UnreadableMemory:
            continue
        if len(sizes) == 1 and min(sizes) >= 500:
            return Root(address, "its shape in .bss")
    return None


def _table_size(memory: Memory, table: int) -> int:
    """Return ``st_table.num_entries``, a 63-bit field (st.h of 2.1); 0 if invalid."""
    bins, packed = struct.unpack("<QQ", memory.read(table + 8, 16))
    entries = int(packed) >> 1
    return entries if 0 < bins < 1 << 28 and entries < 1 << 28 else 0


def find_zjit(ruby: Ruby) -> Root | None:
    """Return the address of the entry point of ZJIT's code, 0 while ZJIT is off (4.0).

    None for a Ruby without ZJIT.
    """
    address = ruby.address("rb_zjit_entry")
    return None if address is None else Root(address, "rb_zjit_entry")


def may_hide_zjit(ruby: Ruby) -> bool:
    """Return whether ZJIT may be on although ``find_zjit`` finds nothing.

    YJIT and ZJIT are exported alike, so a Ruby that exports only YJIT has no ZJIT.
    """
    has = [ruby.symbols.find(f"rb_{jit}_init") is not None for jit in ("yjit", "zjit")]
    return find_zjit(ruby) is None and has != [True, False]


def _candidates(memory: Memory, regions: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield addresses of possible {u32 last_id, pointer, object}.

    A VM that has started has about 3,000 symbols or more.
    """
    for start, size in regions:
        try:
            data = memory.read(start, size - size % 8)
        except UnreadableMemory:
            continue
        words = memoryview(data).cast("Q")
        for index in range(len(words) - 2):
            word = words[index]
            if (
                500 <= word & 0xFFFFFFFF < 1 << 28
                and (word < 1 << 32)
                and is_pointer(words[index + 1])
                and is_pointer(words[index + 2])
            ):
                yield start + 8 * index


_UNIT = 512
"""ID_ENTRY_UNIT (symbol.c): serial numbers in each array of the table."""

_T_ARRAY = 7
_T_DATA = 0xC
_T_STRING = 5
_EMBEDDED_ARRAY = 1 << 13

KNOWN_IDS = {33: b"!", 43: b"+", 47: b"/", 60: b"<", 126: b"~"}
"""Operators have the code of their character as their ID in each version."""


def _resolves(memory: Memory, address: int) -> bool:
    """Return whether the table contains the names of known operators."""
    try:
        ids = read_word(memory, address + 16)
        arrays = read_array(memory, ids, 1) or _first_in_data(memory, ids)
        if not arrays:
            return False
        entries = read_array(memory, arrays[0], 2 * _UNIT)
        if not entries:
            entries = _strings_in_data(memory, arrays[0])
        return all(
            2 * serial < len(entries) and _is_string(memory, entries[2 * serial], name)
            for serial, name in KNOWN_IDS.items()
        )
    except UnreadableMemory:
        return False


def _first_in_data(memory: Memory, value: int) -> list[int]:
    """Return the first entry of a typed object that replaces the outer Array.

    Its structure is {number, pointer to entries} (4.1, from August 2026).
    """
    data = _data_of(memory, value)
    if not data:
        return []
    count, entries = struct.unpack("<2Q", memory.read(data, 16))
    is_some = 0 < count < 1 << 20 and is_pointer(entries)
    return [read_word(memory, entries)] if is_some else []


def _data_of(memory: Memory, value: int) -> int:
    """Return the pointer in struct RTypedData {flags, klass, fields, type, data}; 0 for
    other objects."""
    if not is_pointer(value):
        return 0
    flags, *_, data = struct.unpack("<5Q", memory.read(value, 40))
    return int(data) if flags & 0x1F == _T_DATA and is_pointer(data) else 0


def _strings_in_data(memory: Memory, value: int) -> list[int]:
    """Return the entries of a typed object that replaces an inner Array (4.1).

    They start with the first string; [] for other objects. The structure is an
    rb_darray {size, capa, {symbol, string} ...}.
    """
    data = _data_of(memory, value)
    if not data or read_word(memory, data) != _UNIT:
        return []
    return list(memoryview(memory.read(data + 24, 16 * _UNIT - 8)).cast("Q"))


def read_array(memory: Memory, value: int, most: int) -> list[int]:
    """Return the first VALUEs of an Array, at most ``most``; [] for other objects.

    struct RArray {flags, klass, {len, capa, ptr} or the elements themselves}.
    """
    if not is_pointer(value):
        return []
    flags, _, length, _, pointer = struct.unpack("<5Q", memory.read(value, 40))
    if flags & 0x1F != _T_ARRAY:
        return []
    if flags & _EMBEDDED_ARRAY:
        count, pointer = flags >> 15 & 0x7F, value + 16
    else:
        count = length
    count = min(count, most)
    if count <= 0 or not is_pointer(pointer):
        return []
    return list(memoryview(memory.read(pointer, 8 * count)).cast("Q"))


def _is_string(memory: Memory, value: int, text: bytes) -> bool:
    """Return whether a value is an embedded String with that text, in any version.

    The bytes follow the object's head, since 3.2 after 8 bytes of length.
    """
    if not is_pointer(value):
        return False
    data = memory.read(value, 40)
    if data[0] & 0x1F != _T_STRING:
        return False
    return data[16 : 17 + len(text)] == text + b"\0" or (
        data[16:24] == _WORD.pack(len(text))
        and data[24 : 25 + len(text)] == text + b"\0"
    )
