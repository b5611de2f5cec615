from __future__ import annotations

import pytest

from rbtrace_py.session.ractors import unseen_ractors


@pytest.mark.parametrize(
    ("ractors", "unseen", "said"),
    [
        (1, 0, []),
        (4, 0, []),
        (4, 3, ["process 7 has 4 Ractors; only the main one is seen"]),
        (4, 1, ["process 7 has 4 Ractors; 1 of them is not seen"]),
        (4, 2, ["process 7 has 4 Ractors; 2 of them are not seen"]),
    ],
)
def test_what_is_said(ractors: int, unseen: int, said: list[str]) -> None:
    assert unseen_ractors(7, ractors, unseen) == said
