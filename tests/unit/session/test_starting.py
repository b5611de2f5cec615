"""The maximum wait of the tracer for a program that it started."""

from __future__ import annotations

import pytest

from rbtrace_py.errors import NotRuby, RbtraceError, VmNotStarted
from rbtrace_py.session.stacks import sampling


@pytest.mark.parametrize(
    ("error", "limit", "expected"),
    [
        (VmNotStarted("it is starting"), 1.0, 10.0),
        (VmNotStarted("it is starting"), 60.0, 60.0),
        (NotRuby("a shell"), 1.0, 1.0),
    ],
)
def test_a_ruby_that_has_begun_is_given_time(
    error: RbtraceError, limit: float, expected: float
) -> None:
    assert sampling._patience(limit, error) == expected
