"""Fires any requested probe, valid or not, through the C library.

A line of JSON on standard input is one command:

  ["define", provider, name, role, [[operand, type, role], ...]]
  ["fire", name, [values], times]     a string is passed as a pointer to its bytes
  ["threads", [names], count]         ``count`` threads, each firing these in turn

libstapsdt.h defines the numbers of roles and types.
"""

import ctypes
import json
import sys
import threading
from pathlib import Path

LIBRARY = Path(__file__).parents[3] / "ext" / "libstapsdt" / "libstapsdt.so"


class Operand(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("role", ctypes.c_int),
    )


def define(lib, pool, provider, name, role, operands):
    made = (Operand * len(operands))(
        *(Operand(n.encode(), kind, what) for n, kind, what in operands)
    )
    probe = ctypes.c_void_p()
    error = ctypes.create_string_buffer(512)
    status = lib.sdt_define(
        pool,
        provider.encode(),
        name.encode(),
        role,
        made,
        ctypes.c_size_t(len(operands)),
        error,
        ctypes.byref(probe),
    )
    if status:
        sys.exit(f"{name}: {error.raw[4:].split(bytes(1))[0].decode()}")
    return probe


def fire(lib, probe, values, times):
    texts = [
        ctypes.create_string_buffer(v.encode("latin-1"))
        for v in values
        if isinstance(v, str)
    ]
    pointers = iter(texts)
    raw = [
        ctypes.addressof(next(pointers)) if isinstance(v, str) else v & (2**64 - 1)
        for v in values
    ]
    operands = (ctypes.c_uint64 * max(1, len(raw)))(*raw)
    for _ in range(times):
        lib.sdt_fire(probe, operands)


def threads(lib, chosen, count):
    def work():
        for probe in chosen:
            fire(lib, probe, [], 1)

    for _ in range(count):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def main():
    lib = ctypes.CDLL(str(LIBRARY))
    lib.sdt_pool_create.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(lib.sdt_pool_create())
    probes = {}
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *rest = json.loads(line)
        if verb == "define":
            probes[rest[1]] = define(lib, pool, *rest)
        elif verb == "threads":
            threads(lib, [probes[name] for name in rest[0]], rest[1])
        else:
            name, values, times = rest
            fire(lib, probes[name], values, times)
        print("done", flush=True)


main()
