"""BPF maps, through bpf(2)."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

from rbtrace_py.bpf import syscall as sys_


@dataclass(frozen=True, slots=True)
class MapSpec:
    """Description of a map: kind, sizes in bytes, and maximum number of entries."""

    kind: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int = 0


class Map:
    """A map. Keys and values are bytes of the sizes in its spec."""

    def __init__(self, name: str, spec: MapSpec) -> None:
        self.name = name
        self.spec = spec
        attr = sys_.attributes(
            "IIIIIII16s",
            spec.kind,
            spec.key_size,
            spec.value_size,
            spec.max_entries,
            spec.flags,
            0,
            0,
            name.encode()[:15],  # type: ignore[arg-type]
        )
        self.fd = sys_.bpf(sys_.MAP_CREATE, attr, f"create the BPF map {name}")
        self._view: mmap.mmap | None = None

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def put(self, key: bytes, value: bytes, only_new: bool = False) -> None:
        """Set a value; if ``only_new``, only for a new key."""
        k = ctypes.create_string_buffer(key, self.spec.key_size)
        v = ctypes.create_string_buffer(value, self.spec.value_size)
        attr = sys_.attributes(
            "IxxxxQQQ", self.fd, sys_.address(k), sys_.address(v), only_new
        )
        result = sys_.raw_bpf(sys_.MAP_UPDATE_ELEM, attr)
        if result < 0 and not (only_new and result == -errno.EEXIST):
            raise sys_.refused(-result, f"write the BPF map {self.name}")

    def has(self, key: bytes) -> bool:
        """Return whether the key has a value."""
        k = ctypes.create_string_buffer(key, self.spec.key_size)
        v = ctypes.create_string_buffer(self.spec.value_size)
        attr = sys_.attributes("IxxxxQQQ", self.fd, sys_.address(k), sys_.address(v), 0)
        return sys_.raw_bpf(sys_.MAP_LOOKUP_ELEM, attr) >= 0

    def delete(self, key: bytes) -> None:
        """Remove ``key``, if it exists."""
        k = ctypes.create_string_buffer(key, self.spec.key_size)
        attr = sys_.attributes("IxxxxQQQ", self.fd, sys_.address(k), 0, 0)
        result = sys_.raw_bpf(sys_.MAP_DELETE_ELEM, attr)
        if result < 0 and result != -errno.ENOENT:
            raise sys_.refused(-result, f"change the BPF map {self.name}")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries of a hash, read in batches.

        Entries that exist throughout are yielded once. Entries that are inserted
        meanwhile may be missing.
        """
        size = 4096
        key_size, value_size = self.spec.key_size, self.spec.value_size
        cursor = ctypes.create_string_buffer(max(key_size, 8))
        started = False
        while True:
            keys = ctypes.create_string_buffer(size * key_size)
            values = ctypes.create_string_buffer(size * value_size)
            attr = sys_.attributes(
                "QQQQIIQQ",
                sys_.address(cursor) if started else 0,
                sys_.address(cursor),
                sys_.address(keys),
                sys_.address(values),
                size,
                self.fd,
                0,
                0,
            )
            result = sys_.raw_bpf(sys_.MAP_LOOKUP_BATCH, attr)
            if result == -errno.ENOSPC:  # one bucket holds more than a batch
                size *= 2
                continue
            if result < 0 and result != -errno.ENOENT:
                raise sys_.refused(-result, f"read the BPF map {self.name}")
            found = int.from_bytes(attr.raw[32:36], "little")
            for i in range(found):
                yield (
                    bytes(memoryview(keys)[i * key_size : (i + 1) * key_size]),
                    bytes(memoryview(values)[i * value_size : (i + 1) * value_size]),
                )
            if result == -errno.ENOENT:
                return
            started = True

    def view(self) -> mmap.mmap:
        """Return the memory of an array made with F_MMAPABLE, read-only."""
        if self._view is None:
            stride = (self.spec.value_size + 7) & ~7
            self._view = mmap.mmap(
                self.fd,
                stride * self.spec.max_entries,
                mmap.MAP_SHARED,
                mmap.PROT_READ,
            )
        return self._view
