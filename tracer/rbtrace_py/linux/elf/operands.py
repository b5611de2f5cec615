"""Operand locations of a probe site: the argument string of a ``stapsdt`` note.

Each operand is written in assembler syntax after its size (``-4@%edi 8@8(%rsp)``). An
operand that cannot be read from registers and memory alone is None: symbols, vector
registers, segments.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rbtrace_py.linux.elf.reader import EM_AARCH64, EM_X86_64
from rbtrace_py.model.probes import Location, LocationKind

X86_64_REGISTERS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8"),
    *("rax", "rcx", "rdx", "rsi", "rdi", "orig_rax"),
    *("rip", "cs", "eflags", "rsp", "ss"),
)
"""``Location.register`` on x86-64: ``struct pt_regs`` in order, 8 bytes each."""

AARCH64_REGISTERS = (*(f"x{number}" for number in range(31)), "sp", "pc")
"""``Location.register`` on aarch64: ``struct user_pt_regs`` in order, 8 bytes each."""

MAX_OPERANDS = 64

_NUMBER = r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)"
_SIZED = re.compile(r"(-?)([1248])(f?)@(.*)", re.DOTALL)
_BOUNDARY = re.compile(r"\s+(?=-?[0-9]+f?@)")
_X86_MEMORY = re.compile(
    rf"((?:{_NUMBER})?(?:[+-](?:0[xX][0-9a-fA-F]+|[0-9]+)){{0,4}})"
    r"\(\s*%(\w+)\s*(?:,\s*%(\w+)\s*(?:,\s*([1248])\s*)?)?\)"
)
_X86_CONSTANT = re.compile(rf"\$({_NUMBER})")
_ARM_MEMORY = re.compile(
    rf"\[\s*(\w+)\s*(?:,\s*(?:#?({_NUMBER})|(\w+)\s*(?:,\s*lsl\s+#?([0-3])\s*)?)\s*)?\]"
)
_ARM_CONSTANT = re.compile(rf"#?({_NUMBER})")
_TERM = re.compile(_NUMBER)


def _x86_names() -> dict[str, int]:
    """Map each name of a general register, or of its low part, without ``%``."""
    names = {name: index for index, name in enumerate(X86_64_REGISTERS)}
    for letter in "abcd":
        whole = names[f"r{letter}x"]
        names |= {f"e{letter}x": whole, f"{letter}x": whole, f"{letter}l": whole}
    for word in ("si", "di", "bp", "sp"):
        whole = names[f"r{word}"]
        names |= {f"e{word}": whole, word: whole, f"{word}l": whole}
    for number in range(8, 16):
        whole = names[f"r{number}"]
        names |= {f"r{number}{suffix}": whole for suffix in "dwb"}
    for unusable in ("orig_rax", "cs", "ss", "eflags"):
        del names[unusable]
    return names


def _arm_names() -> dict[str, int]:
    names = {name: index for index, name in enumerate(AARCH64_REGISTERS)}
    names |= {f"w{number}": number for number in range(31)}
    names |= {"wsp": 31, "fp": 29, "lr": 30}
    return names


_X86_REGISTERS = _x86_names()
_X86_ADDRESS = {
    name: index
    for name, index in _X86_REGISTERS.items()
    if name in X86_64_REGISTERS and name != "rip"
}
_ARM_REGISTERS = _arm_names()
_ARM_ADDRESS = {
    name: index
    for name, index in _ARM_REGISTERS.items()
    if not name.startswith("w") and name != "pc"
}


@lru_cache(maxsize=8192)
def parse_operands(text: str, machine: int) -> tuple[Location | None, ...]:
    """Parse the argument string of a note for the ELF ``machine``; never raises.

    Returns:
        At most MAX_OPERANDS locations, None for an operand that cannot be read. A
        constant is truncated to its size and sign.
    """
    if not text.strip():
        return ()
    pieces = _BOUNDARY.split(text.strip())[:MAX_OPERANDS]
    return tuple(parse_operand(piece, machine) for piece in pieces)


def parse_operand(text: str, machine: int) -> Location | None:
    """Parse one operand with its size (``-4@%edi``); return None if invalid."""
    sized = _SIZED.fullmatch(text.strip())
    if sized is None:
        return None
    sign, size, is_float, operand = sized.groups()
    shape = _Shape(int(size), bool(sign), bool(is_float))
    if machine == EM_X86_64:
        return _parse_x86(operand.strip(), shape)
    if machine == EM_AARCH64:
        return _parse_arm(operand.strip(), shape)
    return None


class _Shape:
    """Size, sign, and type of an operand, from which its location is built."""

    def __init__(self, size: int, signed: bool, is_float: bool) -> None:
        self._size, self._signed, self._is_float = size, signed, is_float

    def constant(self, text: str) -> Location | None:
        value = _in_range(_number(text), self._size, self._signed)
        if value is None or self._is_float:
            return None
        return Location(LocationKind.CONSTANT, self._size, self._signed, value=value)

    def register(self, number: int | None) -> Location | None:
        if number is None:
            return None
        return Location(
            LocationKind.REGISTER,
            self._size,
            self._signed,
            register=number,
            is_float=self._is_float,
        )

    def memory(
        self, base: int | None, value: int, index: int | None = None, scale: int = 1
    ) -> Location | None:
        if base is None or not -(1 << 31) <= value < 1 << 31:
            return None
        return Location(
            LocationKind.MEMORY,
            self._size,
            self._signed,
            register=base,
            value=value,
            index=index,
            scale=scale,
            is_float=self._is_float,
        )


def _in_range(value: int, size: int, signed: bool) -> int | None:
    """Return the value truncated to ``size`` bytes; None if it exceeds 64 bits."""
    if not -(1 << 63) <= value < 1 << 64:
        return None
    low = value & ((1 << 8 * size) - 1)
    return low - (1 << 8 * size) if signed and low >> (8 * size - 1) else low


def _number(text: str) -> int:
    """Parse a number in assembler syntax: hexadecimal, octal, or decimal."""
    digits = text.lstrip("+-")
    if digits[:2].lower() == "0x":
        value = int(digits[:40], 16)
    else:
        value = _decimal_or_octal(digits[:40])
    return -value if text.startswith("-") else value


def _decimal_or_octal(digits: str) -> int:
    octal = len(digits) > 1 and digits[0] == "0" and not set(digits) & {"8", "9"}
    return int(digits, 8 if octal else 10)


def _parse_x86(text: str, shape: _Shape) -> Location | None:
    if text.startswith("%"):
        return shape.register(_X86_REGISTERS.get(text[1:]))
    constant = _X86_CONSTANT.fullmatch(text)
    if constant:
        return shape.constant(constant[1])
    memory = _X86_MEMORY.fullmatch(text)
    if memory is None:
        return None
    displacement, base, index, scale = memory.groups()
    value = sum(map(_number, _TERM.findall(displacement)))
    number = _X86_ADDRESS.get(index) if index else None
    if index and (number is None or index == "rsp"):
        return None
    return shape.memory(_X86_ADDRESS.get(base), value, number, int(scale or 1))


def _parse_arm(text: str, shape: _Shape) -> Location | None:
    if text in ("xzr", "wzr"):
        return shape.constant("0")
    if text in _ARM_REGISTERS:
        return shape.register(_ARM_REGISTERS[text])
    constant = _ARM_CONSTANT.fullmatch(text)
    if constant:
        return shape.constant(constant[1])
    memory = _ARM_MEMORY.fullmatch(text)
    if memory is None:
        return None
    base, value, index, shift = memory.groups()
    number = _ARM_ADDRESS.get(index) if index else None
    if index and (number is None or index == "sp"):
        return None
    scale = 1 << int(shift or 0)
    return shape.memory(
        _ARM_ADDRESS.get(base), _number(value) if value else 0, number, scale
    )
