"""Blocks of a recording: typed, compressed, each with its length and checksum.

This module handles the layout that all blocks share; ``lookup_tables``, ``metadata``,
and ``call_blocks`` handle the contents. docs/formats/recordings.md specifies both.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import BinaryIO

from rbtrace_py.errors import BadRecording

MAGIC = b"\x89RBTREC\n"
MAJOR = 1
MINOR = 0
_FILE_HEADER = struct.Struct("<8sHHI")
_BLOCK_HEADER = struct.Struct("<4sBBHIII")
_BLOCK_MARK = b"rblk"
_COMPRESSED = 1

MAX_BLOCK = 1 << 24
"""Maximum bytes of a block before compression."""


class BlockType(IntEnum):
    """Types of blocks. Readers skip unknown types."""

    META = 1
    STRINGS = 2
    FRAMES = 3
    STACKS = 4
    THREADS = 5
    SAMPLES = 6
    LOSSES = 7
    EVENTS = 8
    CALLS = 9
    END = 10
    SWITCHES = 11
    PROCESS = 12
    METHODS = 13
    RECORDS = 14


class Damaged(Exception):
    """An incomplete or malformed block."""


class CutOff(Damaged):
    """The file ends within a block."""


def file_header() -> bytes:
    return _FILE_HEADER.pack(MAGIC, MAJOR, MINOR, 0)


def check_file_header(data: bytes, name: str) -> None:
    """Check the header at the beginning of a file.

    Args:
        data: Bytes of the beginning.
        name: Name of the file for the error.

    Raises:
        BadRecording: The file is not a recording, or has another major version.
    """
    if len(data) < _FILE_HEADER.size or not data.startswith(MAGIC):
        raise BadRecording(
            f"{name} is not a recording", "Make one with `rbtrace-py record`"
        )
    _, major, minor, _ = _FILE_HEADER.unpack_from(data)
    if major != MAJOR:
        raise BadRecording(
            f"{name} is of version {major}.{minor}; this rbtrace-py reads version"
            f" {MAJOR}",
            "Use a newer rbtrace-py" if major > MAJOR else "",
        )


FILE_HEADER_SIZE = _FILE_HEADER.size


def block(kind: int, payload: bytes, compress: bool = True) -> bytes:
    """Return the bytes of a block in a file.

    Raises:
        ValueError: ``payload`` exceeds MAX_BLOCK.
    """
    if len(payload) > MAX_BLOCK:
        raise ValueError(f"a block of {len(payload)} bytes")
    stored, flags = payload, 0
    # Compression usually enlarges such a short block.
    if compress and len(payload) > 64:
        packed = zlib.compress(payload, 1)
        if len(packed) < len(payload):
            stored, flags = packed, _COMPRESSED
    head = (_BLOCK_MARK, kind, flags, 0, len(stored), len(payload))
    check = zlib.crc32(stored, zlib.crc32(_BLOCK_HEADER.pack(*head, 0)))
    return _BLOCK_HEADER.pack(*head, check) + stored


def blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield type and payload of each block from the file's current position.

    Raises:
        Damaged: A block is incomplete or malformed.
    """
    while head := file.read(_BLOCK_HEADER.size):
        yield _block(head, file)


def _block(head: bytes, file: BinaryIO) -> tuple[int, bytes]:
    not_ours = Damaged("something that is not a block")
    if not _BLOCK_MARK.startswith(head[: len(_BLOCK_MARK)]):
        raise not_ours
    if len(head) < _BLOCK_HEADER.size:
        raise CutOff("the last block is incomplete")
    mark, kind, flags, zero, stored_size, size, check = _BLOCK_HEADER.unpack(head)
    if max(stored_size, size) > MAX_BLOCK:
        raise not_ours
    stored = file.read(stored_size)
    if len(stored) < stored_size:
        # If another block follows, the file is not cut off: this size is wrong.
        is_cut = _BLOCK_MARK not in stored
        raise (CutOff if is_cut else Damaged)("the last block is incomplete")
    bare = _BLOCK_HEADER.pack(mark, kind, flags, zero, stored_size, size, 0)
    if zlib.crc32(stored, zlib.crc32(bare)) != check:
        raise Damaged("a checksum is wrong")
    return kind, _payload(stored, flags, size)


def _payload(stored: bytes, flags: int, size: int) -> bytes:
    if flags & ~_COMPRESSED:
        raise Damaged("a block with unknown flags")
    payload = _inflated(stored, size) if flags & _COMPRESSED else stored
    if len(payload) != size:
        raise Damaged("a block of the wrong size")
    return payload


def _inflated(stored: bytes, size: int) -> bytes:
    """Decompress at most ``size`` + 1 bytes; return nothing if there are more."""
    unpacker = zlib.decompressobj()
    try:
        payload = unpacker.decompress(stored, size + 1)
    except zlib.error as error:
        raise Damaged("a block that cannot be unpacked") from error
    return payload if unpacker.eof else b""


def pack_columns(typecodes: str, columns: Sequence[Iterable[int]]) -> bytes:
    """Return a count, then each column as little-endian integers of its ``array`` type.

    Numbers outside the type's range are clamped.
    """
    packed = [
        _column(code, values) for code, values in zip(typecodes, columns, strict=True)
    ]
    return struct.pack("<I", len(packed[0])) + b"".join(map(_bytes, packed))


def _column(typecode: str, values: Iterable[int]) -> array[int]:
    if isinstance(values, array):
        return values
    values = list(values)
    try:
        return array(typecode, values)
    except OverflowError:
        bits = array(typecode).itemsize * 8
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1)
        if typecode.isupper():
            low, high = 0, (1 << bits) - 1
        return array(typecode, [min(max(value, low), high) for value in values])


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def unpack_columns(typecodes: str, payload: bytes) -> tuple[list[array[int]], bytes]:
    """Return the columns of ``pack_columns``, and the bytes that follow them.

    Raises:
        Damaged: The columns are incomplete.
    """
    if len(payload) < 4:
        raise Damaged("a table without a count")
    count = int.from_bytes(payload[:4], "little")
    at = 4
    columns = []
    for code in typecodes:
        column = array(code)
        end = at + count * column.itemsize
        if end > len(payload):
            raise Damaged("a truncated table")
        column.frombytes(payload[at:end])
        if sys.byteorder == "big":
            column.byteswap()
        columns.append(column)
        at = end
    return columns, payload[at:]
