"""Summary of tests that were left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import left_out

ROOT, GCC = "tracing needs root", "needs gcc"
ATTACH, EVAL = "tests/e2e/inside/test_attach.py", "tests/e2e/inside/test_eval.py"


def report(test: str, reason: str) -> Any:
    return SimpleNamespace(nodeid=test, longrepr=("x.py", 1, f"Skipped: {reason}"))


REPORTS = [
    report(f"{ATTACH}::test_a", ROOT),
    report(f"{EVAL}::test_a", ROOT),
    report(f"{EVAL}::test_b[1: 2]", ROOT),
    report(f"{EVAL}::test_c", GCC),
]


def test_skips_are_summed_by_reason() -> None:
    found = left_out.skips(REPORTS)
    assert list(left_out.lines(found, is_root=True)) == [
        f"    3 skipped: {ROOT}",
        f"    1 skipped: {GCC}",
    ]


def test_tests_left_out_without_root_are_listed() -> None:
    found = left_out.skips(REPORTS)
    assert list(left_out.lines(found, is_root=False))[2:] == [
        "3 tests were left out without root. They show:",
        "    2 ``eval``: code in a process that loaded the agent.",
        "    1 ``attach`` and ``detach``: the agent in processes that never loaded it.",
    ]


def test_notes_of_several_runs_are_combined(tmp_path: Any) -> None:
    path = str(tmp_path / "notes")
    found = left_out.skips(REPORTS)
    left_out.note(found[:1], path)
    left_out.note(found[1:], path)
    assert left_out.noted(path) == found


def test_a_file_that_says_nothing_of_itself(tmp_path: Any) -> None:
    path = tmp_path / "test_x.py"
    path.write_text("x = 1\n")
    assert left_out.subject(str(path)) == str(path)
    assert list(left_out.lines([], is_root=False)) == []
