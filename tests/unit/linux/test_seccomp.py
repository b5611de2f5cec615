"""Verdicts of seccomp filters on a call with unknown arguments."""

from __future__ import annotations

import struct

import pytest

from filtering import (
    ALLOW,
    ENOSYS,
    EPERM,
    KILL,
    allowing_all,
    forbidding,
    like_dockers,
)
from rbtrace_py.linux.ptrace.seccomp import Call, answers, is_allowed, parse_filter


def said(program: bytes, number: int, *arguments: int | None) -> set[int]:
    return answers(parse_filter(program), Call("", number, arguments))


def test_filters_of_known_shapes() -> None:
    assert said(allowing_all(), 1) == {ALLOW}
    assert said(forbidding([1, 2]), 1) == {KILL}
    assert said(forbidding([1, 2]), 3) == {ALLOW}
    dockers = like_dockers()
    assert said(dockers, 435) == {ENOSYS}
    assert said(dockers, 0) == {ALLOW}
    assert said(dockers, 165) == {EPERM}
    assert said(dockers, 56, 0x3D0F00) == {ALLOW}
    assert said(dockers, 56, 0x10000000) == {EPERM}


def test_an_argument_that_is_not_known() -> None:
    assert said(like_dockers(), 41) == {ALLOW, EPERM}
    assert not is_allowed([parse_filter(like_dockers())], Call("socket", 41))
    assert is_allowed([parse_filter(like_dockers())], Call("socket", 41, (1,)))


def test_all_filters_count() -> None:
    both = [parse_filter(allowing_all()), parse_filter(forbidding([5], EPERM))]
    assert not is_allowed(both, Call("", 5))
    assert is_allowed(both, Call("", 5), or_errno=True)
    assert is_allowed(both, Call("", 6))
    assert not is_allowed([parse_filter(forbidding([5]))], Call("", 5), or_errno=True)


def program(*lines: tuple[int, int, int, int]) -> bytes:
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        # (3 + 4) * 2 - 1, in memory and back, to the index register and back
        (
            [
                *((0x00, 0, 0, 3), (0x04, 0, 0, 4), (0x24, 0, 0, 2), (0x14, 0, 0, 1)),
                *((0x02, 0, 0, 7), (0x61, 0, 0, 7), (0x87, 0, 0, 0), (0x16, 0, 0, 0)),
            ],
            13,
        ),
        ([(0x00, 0, 0, 0xF0), (0x54, 0, 0, 0x3C), (0x74, 0, 0, 4), (0x16, 0, 0, 0)], 3),
        ([(0x00, 0, 0, 1), (0x84, 0, 0, 0), (0x16, 0, 0, 0)], 0xFFFFFFFF),
        ([(0x80, 0, 0, 0), (0x16, 0, 0, 0)], 64),
        ([(0x05, 0, 0, 1), (0x06, 0, 0, 1), (0x06, 0, 0, 2)], 2),
        ([(0x00, 0, 0, 5), (0x25, 1, 0, 4), (0x06, 0, 0, 1), (0x06, 0, 0, 2)], 2),
        ([(0x00, 0, 0, 5), (0x35, 0, 1, 5), (0x06, 0, 0, 1), (0x06, 0, 0, 2)], 1),
        # no end, and a jump out of it: kill
        ([(0x00, 0, 0, 5)], 0),
        ([(0x05, 0, 0, 9)], 0),
    ],
)
def test_instructions(lines: list[tuple[int, int, int, int]], answer: int) -> None:
    assert said(program(*lines), 1) == {answer}
