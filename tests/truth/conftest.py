"""Print the table of results of the truth tests."""

from __future__ import annotations

from typing import Any

import tally


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if tally.tallies:
        terminalreporter.section("truth")
        for line in tally.table():
            terminalreporter.write_line(line)
