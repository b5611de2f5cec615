"""Types of control frames, by the Rubies that share them (vm_core.h)."""

from __future__ import annotations

from collections.abc import Mapping

IN_EP: Mapping[str, int] = {
    "METHOD": 0x11110001,
    "BLOCK": 0x22220001,
    "CLASS": 0x33330001,
    "TOP": 0x44440001,
    "CFUNC": 0x55550001,
    "IFUNC": 0x66660001,
    "EVAL": 0x77770001,
    "RESCUE": 0x78880001,
    "DUMMY": 0x79990001,
}
"""``enum vm_frame_env_flags`` of 2.6 and later: a Fixnum in ``ep[0]``."""

IN_EP_MASK = 0x7FFF0001
"""VM_FRAME_MAGIC_MASK."""
