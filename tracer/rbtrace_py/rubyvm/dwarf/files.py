"""The file with a binary's DWARF: the binary, or a separate file that is verified.

The paths of debug files follow gdb's convention: by build-id in
``/usr/lib/debug/.build-id``, or by the name in ``.gnu_debuglink`` in the directory of
the binary, in its ``.debug``, or below ``/usr/lib/debug``.
"""

from __future__ import annotations

import os
import posixpath
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rbtrace_py.errors import BadElf
from rbtrace_py.linux.elf.reader import SHT_NOBITS, ElfFile
from rbtrace_py.linux.elf.symbols import build_id, debug_link
from rbtrace_py.linux.paths_in_root import open_in_root
from rbtrace_py.linux.text import safe_text

LARGEST = 1 << 30
"""Maximum size of a file with DWARF; a Ruby with all of its DWARF has 50 MB."""

_DEBUG = b"/usr/lib/debug"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class DebugFile:
    """An open file with DWARF; ``path`` is safe to print."""

    fd: int
    path: str


@contextmanager
def debug_file(
    elf: ElfFile, fd: int, path: bytes, roots: Iterable[bytes]
) -> Iterator[DebugFile | None]:
    """Open the file that has the DWARF of ``elf``, or yield None.

    Args:
        elf: The binary.
        fd: Its descriptor.
        path: Its path in the target's root.
        roots: Directories to search in this order, each as if it were ``/``. Links
            cannot lead out of them. b"" is our own root.
    """
    if has_dwarf(elf):
        yield DebugFile(fd, safe_text(path))
        return
    found = _separate(elf, path, roots)
    try:
        yield found
    finally:
        if found is not None:
            os.close(found.fd)


def has_dwarf(elf: ElfFile) -> bool:
    """Return whether the file contains ``.debug_info``, not only its header."""
    for name in (b".debug_info", b".zdebug_info"):
        if any(s.type != SHT_NOBITS and s.size > 0 for s in elf.named(name)):
            return elf.size <= LARGEST
    return False


def _separate(elf: ElfFile, path: bytes, roots: Iterable[bytes]) -> DebugFile | None:
    identity, link = build_id(elf), debug_link(elf)
    for root in roots:
        if identity is not None and len(identity) > 1:
            found = _open(root, _by_build_id(identity), identity, None)
            if found is not None:
                return found
        if link is not None:
            for place in _by_link(path, link.name):
                found = _open(root, place, identity, link.crc)
                if found is not None:
                    return found
    return None


def _by_build_id(identity: bytes) -> bytes:
    digits = identity.hex().encode()
    return b"%s/.build-id/%s/%s.debug" % (_DEBUG, digits[:2], digits[2:])


def _by_link(path: bytes, name: bytes) -> Iterator[bytes]:
    directory = posixpath.dirname(posixpath.normpath(path))
    if directory.startswith(b"/"):
        yield posixpath.join(directory, name)
        yield posixpath.join(directory, b".debug", name)
        yield _DEBUG + posixpath.join(directory, name)


def _open(
    root: bytes, path: bytes, identity: bytes | None, crc: int | None
) -> DebugFile | None:
    """Open a debug file if it has that build-id and CRC-32, as far as they are known.

    A file found by its name may lack a build-id.
    """
    fd = _open_regular(root, path)
    if fd is None:
        return None
    try:
        if _belongs(fd, identity, crc):
            found = DebugFile(fd, safe_text(root + path))
            fd = -1
            return found
    except (BadElf, OSError):
        return None
    finally:
        if fd >= 0:
            os.close(fd)
    return None


def _belongs(fd: int, identity: bytes | None, crc: int | None) -> bool:
    elf = ElfFile(fd)
    if not has_dwarf(elf):
        return False
    own = build_id(elf)
    if own != identity and (crc is None or None not in (own, identity)):
        return False
    return crc is None or crc == _crc(fd, elf.size)


def _open_regular(root: bytes, path: bytes) -> int | None:
    """Open a regular file in a root, or return None.

    It is opened with O_PATH first: opening a FIFO blocks, and opening a device may have
    side effects.
    """
    try:
        handle = _open_by_name(root, path)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(handle)


def _open_by_name(root: bytes, path: bytes) -> int:
    if not root:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_in_root(directory, path)
    finally:
        os.close(directory)


def _crc(fd: int, size: int) -> int:
    """Return the CRC-32 of the first ``size`` bytes, at most LARGEST."""
    value, offset = 0, 0
    while offset < size and (block := os.pread(fd, _BLOCK, offset)):
        value = zlib.crc32(block, value)
        offset += len(block)
    return value
