"""Compiled functions and their maps, loaded into the kernel.

A ``Program`` owns everything it opened: closing it, or dying, takes it out of
the kernel.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import Counter, counter_flags
from rbtrace_py.bpf.compiler import Compiled, compile_program
from rbtrace_py.bpf.maps import Map, MapSpec

COOKIE = 0x5EED5EED5EED5EED
"""What stands in the code where a copy's site number goes (common.h)."""


class Program:
    """One source compiled with its numbers, its maps made, ready to attach.

    source: file in ``programs/``
    maps: what to make, by the names the source uses
    flags: numbers for -D, beside those every program gets
    shared: maps of another program that this one uses too
    """

    def __init__(
        self,
        source: str,
        functions: tuple[str, ...],
        maps: Mapping[str, MapSpec],
        flags: Mapping[str, int],
        prelude: str = "",
        shared: Mapping[str, Map] | None = None,
    ) -> None:
        self._owned: list[Map] = []
        self._fds: dict[tuple[str, int, int | None], int] = {}
        self.maps: dict[str, Map] = dict(shared or {})
        names = (*self.maps, *maps)
        self._compiled: Compiled = compile_program(
            source, functions, names, {**counter_flags(), **flags}, prelude
        )
        try:
            for name, spec in maps.items():
                self.maps[name] = Map(name, spec)
                self._owned.append(self.maps[name])
        except BaseException:
            self.close()
            raise

    def load(
        self,
        function: str,
        program_type: int = sys_.PROG_TYPE_KPROBE,
        attach_type: int = 0,
        cookie: int | None = None,
    ) -> int:
        """Descriptor of ``function`` loaded; a copy of its own a cookie."""
        key = (function, attach_type, cookie)
        if key not in self._fds:
            code = self._link(function, cookie)
            self._fds[key] = sys_.load_program(
                program_type, code, attach_type, function
            )
        return self._fds[key]

    def _link(self, function: str, cookie: int | None) -> bytes:
        code, places = self._compiled.functions[function]
        linked = bytearray(code)
        for place, name in places:
            struct.pack_into("<I", linked, place * 8 + 4, self.maps[name].fd)
        if cookie is not None:
            _write_cookie(linked, cookie)
        return bytes(linked)

    def missed(self) -> int:
        """Hits the kernel itself did not run our programs for.

        ``recursion_misses`` of struct bpf_prog_info, Linux 5.12.
        """
        return sum(_recursion_misses(fd) for fd in self._fds.values())

    def counters(self) -> dict[Counter, int]:
        raw = self.maps["counters"].view()[: 8 * len(Counter)]
        return dict(zip(Counter, struct.unpack(f"<{len(Counter)}Q", raw), strict=True))

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        for made in self._owned:
            made.close()
        self._owned.clear()


def counters_map() -> MapSpec:
    return MapSpec(sys_.MAP_TYPE_ARRAY, 4, 8, len(Counter), sys_.F_MMAPABLE)


def _write_cookie(code: bytearray, cookie: int) -> None:
    """Put a site's number where COOKIE stands: both halves of a wide load."""
    low, high = COOKIE & 0xFFFFFFFF, COOKIE >> 32
    for at in range(0, len(code) - 8, 8):
        if (
            code[at] == 0x18
            and struct.unpack_from("<I", code, at + 4)[0] == low
            and struct.unpack_from("<I", code, at + 12)[0] == high
        ):
            struct.pack_into("<I", code, at + 4, cookie)
            struct.pack_into("<I", code, at + 12, 0)


def _recursion_misses(fd: int) -> int:
    size = 240
    info = ctypes.create_string_buffer(size)
    attr = sys_.attributes("IIQ", fd, size, sys_.address(info))
    if sys_.raw_bpf(sys_.OBJ_GET_INFO_BY_FD, attr) < 0:
        return 0
    return int(struct.unpack_from("<Q", info.raw, 208)[0])
