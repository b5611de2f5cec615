"""Code put into processes that never loaded us."""

from __future__ import annotations

import pytest
from injecting import Bell, bell, injected, ring, state

from processes import times
from rubies import EACH, chroot
from ruby_builds import ARCHIVES

__all__ = ["bell"]

KINDS = (
    "ruby",
    "bignum",
    "malloc",
    "gc",
    "sleep",
    "gets",
    "select",
    "mutex",
    "queue",
    "threads",
    "trap",
    "forked",
)


@pytest.mark.parametrize("ruby", [*EACH, *map(chroot, ARCHIVES)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_code_runs_and_the_program_goes_on(
    kind: str, ruby: str, bell: Bell
) -> None:
    with injected(kind, ruby=ruby) as target:
        before = state(target.pid)
        for _ in range(times(60)):
            injection = ring(target.pid, bell)
            assert injection.attempts >= 1
            assert state(target.pid) == before
        assert target.end() == "right"
