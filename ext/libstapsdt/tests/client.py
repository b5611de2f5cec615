"""Drive libstapsdt.so like programs that load it at run time."""

import ctypes
import os
import sys

INT8, UINT64, INT64 = -1, 8, -8


class Provider(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("probes", ctypes.c_void_p),
        ("errno", ctypes.c_int),
        ("error", ctypes.c_char_p),
        ("_handle", ctypes.c_void_p),
        ("_filename", ctypes.c_char_p),
        ("_fd", ctypes.c_int),
        ("_memfd", ctypes.c_int),
    ]


def load(path):
    library = ctypes.CDLL(path)
    library.providerInit.restype = ctypes.POINTER(Provider)
    library.providerAddProbe.restype = ctypes.c_void_p
    library.providerAddProbe.argtypes = [
        ctypes.POINTER(Provider),
        ctypes.c_char_p,
        ctypes.c_int,
    ]
    for name in ("providerLoad", "providerUnload", "providerDestroy"):
        getattr(library, name).argtypes = [ctypes.POINTER(Provider)]
    library.probeFire.argtypes = [ctypes.c_void_p]
    library.probeIsEnabled.argtypes = [ctypes.c_void_p]
    return library


def image(provider):
    with open(f"/proc/self/fd/{provider.contents._fd}", "rb") as file:
        return file.read()


def main():
    library = load(os.path.abspath(sys.argv[1]))
    provider = library.providerInit(b"from_python")
    probe = library.providerAddProbe(provider, b"first", 3, INT8, UINT64, INT64)
    assert probe
    assert library.providerLoad(provider) == 0, provider.contents.error
    text = b"\0from_python\0first\0-1@"
    assert text in image(provider)
    assert library.probeIsEnabled(probe) == 0
    library.probeFire(probe, -1, ctypes.c_ulonglong(2**64 - 1), ctypes.c_longlong(-3))

    assert library.providerAddProbe(provider, b"later", 0)
    assert b"\0from_python\0later\0" in image(provider)
    assert not library.providerAddProbe(provider, b"bad", 7)
    assert provider.contents.errno == 0
    assert b"7 arguments" in provider.contents.error

    assert library.providerUnload(provider) == 0
    library.probeFire(probe, 1, 2, 3)
    library.providerDestroy(provider)


main()
