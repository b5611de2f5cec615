"""Sampling as commands drive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from processes import Target
from rbtrace_py.cli.common import sampling
from rbtrace_py.cli.main import main


def test_run_time_counts_before_the_command_says_that_it_is_attached(
    start: Callable[..., Target], root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a program may begin to work at once."""
    target = start("stacks/turning.rb", "0")
    order: list[str] = []

    def recorded(name: str) -> Callable[..., Any]:
        called = getattr(sampling, name)

        def call(*words: object) -> Any:
            order.append(name)
            return called(*words)

        return call

    for name in ("attached", "sampling_passes"):
        monkeypatch.setattr(sampling, name, recorded(name))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    words = ["stacks", str(target.pid), "--mode", "wall", "-n", "1"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (None, 0)
    assert order == ["sampling_passes", "attached"]
