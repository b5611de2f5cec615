"""Signal frames of x86-64, from which a thread restores its own registers.

``rt_sigreturn`` restores the complete state of a thread, including its signal mask and
vector registers, from a frame on its stack. A frame and a return address that leads to
this call therefore undo a detour without help from outside.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SIGRETURN = 15
"""``__NR_rt_sigreturn``; the frame is where the stack pointer is at the call."""

RETURN_CODE = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
"""``mov $15, %rax; syscall``: ``__restore_rt`` of glibc and musl. The same bytes work
at any other address."""

_UCONTEXT = struct.Struct("<QQQi4xQ 17Q Q4H 4QQ64x Q")
"""``struct ucontext`` with its ``sigcontext_64`` (asm/ucontext.h, sigcontext.h) and the
mask: flags, link, alternate stack, registers, eflags, segments, error, trap, old mask,
cr2, fpstate."""

FRAME_SIZE = _UCONTEXT.size + 128
"""The kernel requires space for a ``siginfo`` after it, but does not read it."""

_UC_FP_XSTATE, _UC_SIGCONTEXT_SS, _UC_STRICT_RESTORE_SS = 1, 2, 4
_NO_STACK = 0x7FFFFFFF
"""Invalid flags of an alternate stack: the kernel rejects them, continues, and keeps
the current stack (``restore_altstack``)."""

_SOFTWARE = struct.Struct("<IIQI28x")
"""``struct _fpx_sw_bytes``, the last bytes of the legacy area."""
_SOFTWARE_AT = 464
_MAGIC1, _MAGIC2 = 0x46505853, 0x46505845
_HEADER_AT = 512
"""``xstate_bv``: the components that the area contains."""

_XTILE_DATA = 1 << 18
_WITHOUT_TILES = 2816
"""Offset of the AMX registers. The frames of a thread that was never allowed to use AMX
end here, and the kernel rejects longer ones."""

_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_RED_ZONE = 128
_BAD_FLAGS = 0x100 | 0x400 | 0x40000
"""Trap, direction, and alignment check flags, which a called function must not have."""

_REGISTERS = struct.Struct("<27Q")


class Registers(NamedTuple):
    """``struct user_regs_struct`` (sys/user.h), in the same order."""

    r15: int
    r14: int
    r13: int
    r12: int
    rbp: int
    rbx: int
    r11: int
    r10: int
    r9: int
    r8: int
    rax: int
    rcx: int
    rdx: int
    rsi: int
    rdi: int
    orig_rax: int
    rip: int
    cs: int
    eflags: int
    rsp: int
    ss: int
    fs_base: int
    gs_base: int
    ds: int
    es: int
    fs: int
    gs: int

    @classmethod
    def unpack(cls, data: bytes) -> Registers:
        """Unpack the result of PTRACE_GETREGS."""
        return cls(*_REGISTERS.unpack(data))

    def pack(self) -> bytes:
        """Pack the registers for PTRACE_SETREGS."""
        return _REGISTERS.pack(*self)

    def calling(self, function: int, arguments: tuple[int, ...], top: int) -> Registers:
        """Return the registers at the first instruction of ``function``.

        Args:
            function: Address of the function.
            arguments: At most six.
            top: Address of the return address, 8 below a multiple of 16.
        """
        changed = dict(zip(_ARGUMENTS, arguments, strict=False))
        return self._replace(
            **changed,
            rip=function,
            rsp=top,
            rax=0,
            orig_rax=NO_CALL,
            eflags=self.eflags & ~_BAD_FLAGS,
        )


REGISTERS_SIZE = _REGISTERS.size
NO_CALL = (1 << 64) - 1
"""Value of ``orig_rax``: no system call to restart."""


def below(registers: Registers) -> int:
    """Return the highest address below the thread's stack and red zone."""
    return registers.rsp - _RED_ZONE


def frame(registers: Registers, mask: int, fpstate: int) -> bytes:
    """Return the frame that makes a thread continue with ``registers``.

    Args:
        registers: The registers; a frame cannot contain ``orig_rax``.
        mask: Blocked signals, one bit each.
        fpstate: Address of ``vector_area``, or 0 for a program's initial registers.
    """
    flags = _UC_SIGCONTEXT_SS | _UC_STRICT_RESTORE_SS
    r = registers
    return _UCONTEXT.pack(
        flags | (_UC_FP_XSTATE if fpstate else 0),
        *(0, 0, _NO_STACK, 0),
        *(r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15),
        *(r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp, r.rip),
        r.eflags,
        *(r.cs, 0, 0, r.ss),
        *(0, 0, 0, 0),
        fpstate,
        mask,
    )


def vector_area(xstate: bytes) -> bytes:
    """Convert NT_X86_XSTATE to the format of a frame, to be aligned to 64 bytes.

    On a processor without XSAVE (512 bytes), both formats are equal.
    """
    if len(xstate) <= _HEADER_AT:
        return xstate
    (features,) = struct.unpack_from("<Q", xstate, _SOFTWARE_AT)
    (present,) = struct.unpack_from("<Q", xstate, _HEADER_AT)
    size = len(xstate)
    if size > _WITHOUT_TILES and not present & _XTILE_DATA:
        size, features = _WITHOUT_TILES, features & ~_XTILE_DATA
    area = bytearray(xstate[:size])
    _SOFTWARE.pack_into(area, _SOFTWARE_AT, _MAGIC1, size + 4, features, size)
    return bytes(area) + struct.pack("<I", _MAGIC2)
