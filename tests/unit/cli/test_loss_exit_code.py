"""The exit code of a command that lost events."""

from __future__ import annotations

import pytest

from rbtrace_py.errors import TOO_MUCH_LOST, loss_exit_code


@pytest.mark.parametrize(
    ("shown", "missing", "is_too_much"),
    [(0, 0, False), (5, 5, False), (5, 6, True), (0, 1, True), (-1, 0, True)],
)
def test_more_missing_than_shown(shown: int, missing: int, is_too_much: bool) -> None:
    """A full disk may have deleted more calls than are left: fewer than 0 are shown."""
    assert loss_exit_code(shown, missing) == is_too_much * TOO_MUCH_LOST


@pytest.mark.parametrize(
    ("missing", "percent", "is_too_much"),
    [
        (7, 7.0, False),
        (8, 7.0, True),
        (0, 0.0, False),
        (1, 0.0, True),
        (99, 100, False),
    ],
)
def test_a_limit_in_percent(missing: int, percent: float, is_too_much: bool) -> None:
    """The comparison is exact: 100 * (7 / 100) is more than 7."""
    code = loss_exit_code(100 - missing, missing, percent)
    assert code == is_too_much * TOO_MUCH_LOST
