"""Types of control frames, by the versions that share them (vm_core.h)."""

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

IN_EP_2_5: Mapping[str, int] = {**IN_EP, "RESCUE": 0x88880001, "DUMMY": 0x99990001}
"""2.5: not yet limited to a 32-bit Fixnum."""

IN_EP_2_4: Mapping[str, int] = {
    "METHOD": 0x11110001,
    "BLOCK": 0x22220001,
    "CLASS": 0x33330001,
    "TOP": 0x44440001,
    "CFUNC": 0x55550001,
    "PROC": 0x66660001,
    "IFUNC": 0x77770001,
    "EVAL": 0x88880001,
    "LAMBDA": 0x99990001,
    "RESCUE": 0xAAAA0001,
    "DUMMY": 0xBBBB0001,
}
"""2.4, with separate types for procs and lambdas."""

IN_EP_2_4_MASK = 0xFFFF0001

IN_FLAG: Mapping[str, int] = {
    "METHOD": 0x11,
    "BLOCK": 0x21,
    "CLASS": 0x31,
    "TOP": 0x41,
    "CFUNC": 0x61,
    "PROC": 0x71,
    "IFUNC": 0x81,
    "EVAL": 0x91,
    "LAMBDA": 0xA1,
    "RESCUE": 0xB1,
}
"""2.1 and 2.2: ``VM_FRAME_MAGIC_…`` in the control frame's ``flag``."""

IN_FLAG_2_3: Mapping[str, int] = {**IN_FLAG, "DUMMY": 0xC1}
"""2.3."""

IN_FLAG_MASK = 0xFF
"""The low VM_FRAME_MAGIC_MASK_BITS."""
