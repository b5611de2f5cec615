"""Compiled functions and their maps, loaded into the kernel.

A ``Program`` owns its descriptors: the kernel unloads it when it is closed or when the
tracer dies.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.bpf.abi import AT_LOAD, AT_LOAD_MARK, MAPS, SITE_FROM_COOKIE
from rbtrace_py.bpf.compiler import compile_program
from rbtrace_py.bpf.maps import Map, MapSpec
from rbtrace_py.model.counters import Counter

_LD_IMM64 = 0x18
_PSEUDO_MAP_FD = 1 << 4
_WIDE = struct.Struct("<BBxxIxxxxI")
"""A 64-bit load: operation, registers, and both halves of its value."""
_RUN_TIME, _RUN_COUNT, _RECURSION_MISSES, _INFO_SIZE = 192, 200, 208, 240
"""Offsets in struct bpf_prog_info (include/uapi/linux/bpf.h), and its size."""


class Program:
    """A compiled source with its maps, ready to attach.

    Args:
        source: File in ``programs/``.
        maps: Maps to make, by their names in the source.
        flags: Numbers for ``-D``, in addition to ``abi.definitions``.
        numbers: Numbers for AT_LOAD, without maps and the site.
        prelude: Text that precedes the source (the filter).
        shared: Maps of another program that this program also uses.

    Raises:
        NotPermitted: The tracer lacks the rights to use BPF.
        BpfError: The program cannot be compiled, or a map cannot be made.
    """

    def __init__(
        self,
        source: str,
        maps: Mapping[str, MapSpec],
        flags: Mapping[str, int],
        numbers: Mapping[str, int],
        prelude: str = "",
        shared: Mapping[str, Map] | None = None,
    ) -> None:
        self._owned: list[Map] = []
        self._fds: dict[tuple[str, int, int], int] = {}
        self.maps: dict[str, Map] = dict(shared or {})
        self._numbers = dict(numbers)
        self._compiled = compile_program(source, flags, prelude)
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
        site: int = SITE_FROM_COOKIE,
    ) -> int:
        """Load ``function``, once per site, and return its descriptor."""
        key = (function, attach_type, site)
        if key not in self._fds:
            code = self._link(self._compiled[function], site)
            self._fds[key] = sys_.load_program(
                program_type, code, attach_type, function
            )
        return self._fds[key]

    def _link(self, code: bytes, site: int) -> bytes:
        """Replace the marks of AT_LOAD by a map's descriptor or a number."""
        linked = bytearray(code)
        numbers = {**self._numbers, "SITE": site}
        for at in range(0, len(code) - 8, 8):
            operation, registers, low, high = _WIDE.unpack_from(code, at)
            is_marked = operation == _LD_IMM64 and high == AT_LOAD_MARK >> 32
            if not is_marked or low >= len(AT_LOAD):
                continue
            name = AT_LOAD[low]
            if name in self.maps:
                registers |= _PSEUDO_MAP_FD
                value = self.maps[name].fd
            else:  # code for a missing map is unreachable
                value = 0 if name in MAPS else numbers[name]
            halves = value & 0xFFFFFFFF, value >> 32
            _WIDE.pack_into(linked, at, operation, registers, *halves)
        return bytes(linked)

    def missed(self) -> int:
        """Return the number of hits for which the kernel did not run the program.

        Source: ``recursion_misses`` of struct bpf_prog_info, Linux 5.12.
        """
        return sum(_number_of(fd, _RECURSION_MISSES) for fd in self._fds.values())

    def run_time(self, function: str) -> tuple[int, int]:
        """Return the sum of ``run_time_of`` over all copies of ``function``."""
        fds = [fd for (name, _, _), fd in self._fds.items() if name == function]
        runs = [run_time_of(fd) for fd in fds]
        return sum(count for count, _ in runs), sum(ns for _, ns in runs)

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


def run_time_of(fd: int) -> tuple[int, int]:
    """Return a program's number of runs and their ns, while ``RunStatistics`` is open.

    Source: ``run_cnt`` and ``run_time_ns`` of struct bpf_prog_info, Linux 5.1.
    """
    return _number_of(fd, _RUN_COUNT), _number_of(fd, _RUN_TIME)


def _number_of(fd: int, place: int) -> int:
    """Return a field of struct bpf_prog_info; 0 if the kernel lacks it."""
    info = ctypes.create_string_buffer(_INFO_SIZE)
    attr = sys_.attributes("IIQ", fd, _INFO_SIZE, sys_.address(info))
    if sys_.raw_bpf(sys_.OBJ_GET_INFO_BY_FD, attr) < 0:
        return 0
    return int(struct.unpack_from("<Q", info.raw, place)[0])
