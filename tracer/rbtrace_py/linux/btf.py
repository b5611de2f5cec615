"""Offsets of members in the running kernel's structs, from its BTF.

The format is documented in Documentation/bpf/btf.rst of the kernel source. Types are
indexed once by their position, and only those on the way to a member are decoded.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rbtrace_py.errors import NotPermitted, RbtraceError
from rbtrace_py.linux.procfs import read_file

VMLINUX = "/sys/kernel/btf/vmlinux"

_LIMIT = 64 << 20
_MAX_DEPTH = 32
_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")

_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM = 1, 2, 3, 4, 5, 6
_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG = 8, 9, 10, 11, 18
_MODIFIERS = frozenset({_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG})

# Words after the three-word head of a type: a fixed number, and a number per member
# (include/uapi/linux/btf.h: struct btf_array, btf_member, btf_param …).
_EXTRA_WORDS = {_INT: 1, _ARRAY: 3, 14: 1, 17: 1}
_MEMBER_WORDS = {_STRUCT: 3, _UNION: 3, _ENUM: 2, 13: 2, 15: 3, 19: 3}


class NoBtf(RbtraceError):
    """The kernel has no BTF, or its BTF is malformed."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member's offset in the outermost struct and its size, both in bytes.

    ``size`` is None if it is unknown or not a whole number of bytes.
    """

    offset: int
    size: int | None


class Btf:
    """Types of one BTF blob. Raises NoBtf if it is malformed."""

    def __init__(self, data: bytes) -> None:
        types, strings = _split(data)
        self._strings = strings
        self._words = types
        self._starts = _index(types)

    @classmethod
    def load(cls, path: str = VMLINUX) -> Btf:
        """Read the BTF of the running kernel; raises NoBtf or NotPermitted."""
        try:
            return cls(read_file(path, _LIMIT))
        except FileNotFoundError:
            raise NoBtf(
                f"the kernel has no BTF ({path})",
                "Use a kernel built with CONFIG_DEBUG_INFO_BTF=y, like those of"
                " Debian, Ubuntu and Fedora",
            ) from None
        except OSError as error:
            raise NotPermitted(
                f"{path}: {error.strerror}", "Run as root", root_helps=True
            ) from None

    def offset(self, path: str) -> int | None:
        """Return the byte offset of ``struct.member[.member…]``, or None.

        As in C, members of anonymous structs and unions are found. A bit field has no
        byte offset.
        """
        member = self.member(path)
        return None if member is None else member.offset

    def offsets(self, paths: Iterable[str]) -> dict[str, int | None]:
        """Return the ``offset`` of each path."""
        return {path: self.offset(path) for path in paths}

    def known_offsets(self, members: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """Return the offset of each member, by its name.

        Args:
            members: Paths that the member may have in different kernels, by name. The
                error message shows the first.

        Raises:
            NoBtf: No path of a member exists.
        """
        found = {}
        for name, paths in members.items():
            offsets = (self.offset(path) for path in paths)
            offset = next((one for one in offsets if one is not None), None)
            if offset is None:
                raise NoBtf(f"the kernel's BTF lacks {paths[0]}")
            found[name] = offset
        return found

    def size(self, name: str) -> int | None:
        """Return the size of the struct or union ``name`` in bytes, or None."""
        start = self._find(name)
        return None if start is None else self._words[start + 2]

    def member(self, path: str) -> Member | None:
        """Return the offset and size of a member, found as by ``offset``, or None."""
        name, *names = path.split(".")
        start = self._find(name)
        if start is None or not names:
            return None
        bits, type_id = 0, 0
        for depth, wanted in enumerate(names):
            if depth:
                inner = self._resolve(type_id)
                if inner is None:
                    return None
                start = inner
            found = self._member(start, wanted.encode(), set())
            if found is None:
                return None
            bits, type_id = bits + found[0], found[1]
        return None if bits % 8 else Member(bits // 8, self._size_of(type_id))

    def _find(self, name: str) -> int | None:
        """Return the start of the first full definition of a struct or union."""
        wanted = name.encode()
        at = self._strings.find(b"\0" + wanted + b"\0") + 1
        while at > 0:
            for start in self._starts_named(at):
                return start
            at = self._strings.find(b"\0" + wanted + b"\0", at) + 1
        return None

    def _starts_named(self, name_offset: int) -> Iterable[int]:
        words = self._words
        for start in self._starts[1:]:
            if words[start] == name_offset and self._kind(start) in (_STRUCT, _UNION):
                yield start

    def _kind(self, start: int) -> int:
        return self._words[start + 1] >> 24 & 31

    def _start(self, type_id: int) -> int | None:
        return self._starts[type_id] if 0 < type_id < len(self._starts) else None

    def _resolve(self, type_id: int) -> int | None:
        """Return the start of the type behind typedefs and qualifiers."""
        for _ in range(_MAX_DEPTH):
            start = self._start(type_id)
            if start is None or self._kind(start) not in _MODIFIERS:
                return start
            type_id = self._words[start + 2]
        return None

    def _member(
        self, start: int, wanted: bytes, seen: set[int]
    ) -> tuple[int, int] | None:
        """Return a member's bit offset and type; search each anonymous member once."""
        words = self._words
        info = words[start + 1]
        if self._kind(start) not in (_STRUCT, _UNION) or start in seen:
            return None
        seen.add(start)
        for at in range(start + 3, start + 3 + 3 * (info & 0xFFFF), 3):
            name, type_id, place = words[at], words[at + 1], words[at + 2]
            bits = place & 0xFFFFFF if info >> 31 else place
            if self._name_is(name, wanted):
                return (bits, type_id)
            inner = self._resolve(type_id) if name == 0 else None
            if inner is not None:
                found = self._member(inner, wanted, seen)
                if found is not None:
                    return (bits + found[0], found[1])
        return None

    def _name_is(self, offset: int, wanted: bytes) -> bool:
        end = offset + len(wanted)
        return self._strings[offset:end] == wanted and self._strings[end : end + 1] in (
            b"\0",
            b"",
        )

    def _size_of(self, type_id: int) -> int | None:
        count = 1
        for _ in range(_MAX_DEPTH):
            start = self._resolve(type_id)
            if start is None:
                return None
            if self._kind(start) != _ARRAY:
                size = 8 if self._kind(start) == _PTR else self._words[start + 2]
                return size * count
            type_id = self._words[start + 3]
            count *= self._words[start + 5]
        return None


def _split(data: bytes) -> tuple[array[int], bytes]:
    """Return the words of the types and the bytes of the strings; raises NoBtf."""
    if len(data) < _HEADER.size:
        raise NoBtf("the kernel's BTF is truncated")
    magic, _, _, head, type_at, type_size, string_at, string_size = _HEADER.unpack_from(
        data
    )
    if magic != _MAGIC:
        raise NoBtf("the kernel's BTF has a wrong magic number")
    type_at, string_at = type_at + head, string_at + head
    if max(type_at + type_size, string_at + string_size) > len(data) or type_size % 4:
        raise NoBtf("the kernel's BTF is truncated")
    types = array("I", data[type_at : type_at + type_size])
    return types, data[string_at : string_at + string_size]


def _index(words: array[int]) -> array[int]:
    """Return the start of each type by its id, in words; type 0 is void.

    This is written for speed: a kernel has over 100,000 types, and the user waits.
    """
    extra = [_EXTRA_WORDS.get(kind, 0) + 3 for kind in range(32)]
    each = [_MEMBER_WORDS.get(kind, 0) for kind in range(32)]
    starts = [0]
    append = starts.append
    at, end = 0, len(words)
    try:
        while at < end:
            append(at)
            info = words[at + 1]
            kind = info >> 24 & 31
            at += extra[kind] + each[kind] * (info & 0xFFFF)
    except IndexError:
        raise NoBtf("the kernel's BTF is truncated") from None
    if at != end:
        raise NoBtf("the kernel's BTF is truncated")
    return array("I", starts)
