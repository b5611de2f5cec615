"""Skipped tests: the number for each reason, and what root would have shown.

    python tests/left_out.py FILE

prints this for several runs that had RBTRACE_LEFT_OUT=FILE.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

Skip = tuple[str, str]
"""A test's file, and why it was skipped."""


def skips(reports: Iterable[Any]) -> list[Skip]:
    """Return the skipped tests in pytest's reports."""
    found = []
    for report in reports:
        reason = report.longrepr[2] if report.longrepr else ""
        found.append((report.nodeid.partition("::")[0], reason.partition(": ")[2]))
    return found


def note(found: list[Skip], path: str) -> None:
    """Append skips to a file that several runs share."""
    with open(path, "a") as file:
        file.writelines(json.dumps(skip) + "\n" for skip in found)


def noted(path: str) -> list[Skip]:
    return [tuple(json.loads(line)) for line in Path(path).read_text().splitlines()]


def lines(found: list[Skip], is_root: bool) -> Iterator[str]:
    """Yield the lines of the summary, if there are any skips."""
    reasons = Counter(reason for _, reason in found)
    for reason, count in reasons.most_common():
        yield f"{count:5} skipped: {reason}"
    files = Counter(file for file, reason in found if re.search(r"\broot\b", reason))
    if is_root or not files:
        return
    yield f"{files.total()} tests were left out without root. They show:"
    for file, count in files.most_common():
        yield f"{count:5} {subject(file)}"


def subject(file: str) -> str:
    """Return the first line of a test file's docstring, or its path without one."""
    said = ast.get_docstring(ast.parse((ROOT / file).read_text()))
    return said.partition("\n")[0] if said else file


if __name__ == "__main__":
    print(*lines(noted(sys.argv[1]), os.geteuid() == 0), sep="\n")
