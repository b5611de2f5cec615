from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtrace_py.linux.elf.operands import (
    AARCH64_REGISTERS,
    MAX_OPERANDS,
    X86_64_REGISTERS,
    parse_operand,
    parse_operands,
)
from rbtrace_py.linux.elf.reader import EM_AARCH64, EM_X86_64
from rbtrace_py.model.probes import Location, LocationKind

CONSTANT, REGISTER, MEMORY = LocationKind


def x86(name: str) -> int:
    return X86_64_REGISTERS.index(name)


def test_registers_are_numbered_as_in_pt_regs() -> None:
    assert X86_64_REGISTERS[:4] == ("r15", "r14", "r13", "r12")
    assert len(X86_64_REGISTERS) == 21
    assert (x86("rdi"), x86("rsp"), x86("rip")) == (14, 19, 16)
    assert AARCH64_REGISTERS[30:] == ("x30", "sp", "pc")


X86_CASES = {
    "-4@%edi": Location(REGISTER, 4, True, register=x86("rdi")),
    "8@%r15": Location(REGISTER, 8, False, register=x86("r15")),
    "1@%r8b": Location(REGISTER, 1, False, register=x86("r8")),
    "-2@%r10w": Location(REGISTER, 2, True, register=x86("r10")),
    "4@%r9d": Location(REGISTER, 4, False, register=x86("r9")),
    "1@%sil": Location(REGISTER, 1, False, register=x86("rsi")),
    "2@%bx": Location(REGISTER, 2, False, register=x86("rbx")),
    "8@8(%rsp)": Location(MEMORY, 8, False, register=x86("rsp"), value=8),
    "8@(%rsp)": Location(MEMORY, 8, False, register=x86("rsp")),
    "-8@-16(%rbp,%rax,8)": Location(
        MEMORY, 8, True, register=x86("rbp"), value=-16, index=x86("rax"), scale=8
    ),
    "8@(%rbx,%rcx)": Location(MEMORY, 8, False, register=x86("rbx"), index=x86("rcx")),
    "4@0x10+8(%rax)": Location(MEMORY, 4, False, register=x86("rax"), value=24),
    "4@16-8(%rax)": Location(MEMORY, 4, False, register=x86("rax"), value=8),
    "8f@8(%rsp)": Location(
        MEMORY, 8, False, register=x86("rsp"), value=8, is_float=True
    ),
    "4@$5": Location(CONSTANT, 4, False, value=5),
    "-4@$-5": Location(CONSTANT, 4, True, value=-5),
    "4@$-1": Location(CONSTANT, 4, False, value=0xFFFFFFFF),
    "-1@$255": Location(CONSTANT, 1, True, value=-1),
    "8@$-1": Location(CONSTANT, 8, False, value=(1 << 64) - 1),
    "8@$0x7f": Location(CONSTANT, 8, False, value=127),
    "8@$010": Location(CONSTANT, 8, False, value=8),
}


@pytest.mark.parametrize("text", X86_CASES)
def test_x86(text: str) -> None:
    assert parse_operand(text, EM_X86_64) == X86_CASES[text]


@pytest.mark.parametrize(
    "text",
    [
        "8f@%xmm0",
        "1@%ah",
        "8@foo(%rip)",
        "8@16(%rip)",
        "8@foo",
        "8@$foo",
        "4@5",
        "3@%rax",
        "16@%rax",
        "8@",
        "@%rax",
        "%rax",
        "8@%fs:16",
        "8@%cs",
        "8@8(%eax)",
        "8@(%rax,%rsp,2)",
        "8@(%rax,%rbx,3)",
        "8@(,%rax,8)",
        "8@4294967296(%rax)",
        "8@$18446744073709551616",
        "8@$" + "9" * 5000,
        "8@x0",
        "8@(%rax",
        "--8@%rax",
    ],
)
def test_x86_that_cannot_be_read(text: str) -> None:
    assert parse_operand(text, EM_X86_64) is None


ARM_CASES = {
    "8@x0": Location(REGISTER, 8, False, register=0),
    "-4@w30": Location(REGISTER, 4, True, register=30),
    "8@sp": Location(REGISTER, 8, False, register=31),
    "-4@[sp, 12]": Location(MEMORY, 4, True, register=31, value=12),
    "8@[sp, #-8]": Location(MEMORY, 8, False, register=31, value=-8),
    "8@[x1]": Location(MEMORY, 8, False, register=1),
    "8@[x0, x1, lsl 3]": Location(MEMORY, 8, False, register=0, index=1, scale=8),
    "8@[x0,x1]": Location(MEMORY, 8, False, register=0, index=1),
    "4@5": Location(CONSTANT, 4, False, value=5),
    "-4@#-5": Location(CONSTANT, 4, True, value=-5),
    "4@wzr": Location(CONSTANT, 4, False, value=0),
}


@pytest.mark.parametrize("text", ARM_CASES)
def test_aarch64(text: str) -> None:
    assert parse_operand(text, EM_AARCH64) == ARM_CASES[text]


@pytest.mark.parametrize(
    "text",
    [
        "8@d0",
        "8@x31",
        "8@[x0], 8",
        "8@[x0, 8]!",
        "8@[w0]",
        "8@[x0, w1, sxtw 3]",
        "8@[x0, sp]",
        "8@[pc]",
        "8@[x0, #:lo12:foo]",
        "8@%rdi",
        "8@$5",
    ],
)
def test_aarch64_that_cannot_be_read(text: str) -> None:
    assert parse_operand(text, EM_AARCH64) is None


def test_other_machines_are_counted_but_not_read() -> None:
    assert parse_operands("8@r3 -4@r4", 21) == (None, None)


def test_lists_keep_places() -> None:
    read = parse_operands("  -4@%edi 8f@%xmm0  8@foo(%rip) 8@%rsi ", EM_X86_64)
    assert [location is None for location in read] == [False, True, True, False]
    spaced = parse_operands("-4@[sp, 12] 8@[x0, x1, lsl 3] 8@x2", EM_AARCH64)
    assert len(spaced) == 3
    assert None not in spaced
    assert parse_operands("", EM_X86_64) == ()
    assert parse_operands("   ", EM_X86_64) == ()
    assert len(parse_operands("8@%rdi " * 500, EM_X86_64)) == MAX_OPERANDS


OPERAND = st.text("-+0123456789@$%()[],#xf lsriabdpe:!\n\0é", max_size=60)
MACHINES = st.sampled_from([EM_X86_64, EM_AARCH64, 0])


@given(OPERAND | st.text(max_size=60), MACHINES)
def test_never_raises(text: str, machine: int) -> None:
    for location in parse_operands(text, machine):
        assert location is None or is_sound(location)


def is_sound(location: Location) -> bool:
    low = -(1 << 63) if location.signed or location.kind is MEMORY else 0
    return (
        location.size in (1, 2, 4, 8)
        and low <= location.value < 1 << 64
        and location.scale in (1, 2, 4, 8)
        and (location.register is not None) == (location.kind is not CONSTANT)
        and (location.register or 0) < 33
    )


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.integers(-(1 << 31), (1 << 31) - 1),
    st.sampled_from([name for name in X86_64_REGISTERS if name[1] in "189abcd"][:8]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_what_is_written_is_read(
    size: int, signed: bool, value: int, base: str, scale: int
) -> None:
    text = f"{'-' if signed else ''}{size}@{value}(%{base},%rdi,{scale})"
    assert parse_operand(text, EM_X86_64) == Location(
        MEMORY, size, signed, x86(base), value, x86("rdi"), scale
    )
