"""One version for the command, the gem and the C library; each declares it itself."""

from __future__ import annotations

import re

from processes import ROOT
from rbtrace_py import __version__


def found(path: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text())
    assert match is not None, f"no version in {path}"
    return ".".join(match.groups())


def test_they_are_equal() -> None:
    header = "ext/libstapsdt/libstapsdt.h"
    assert found("ruby/lib/tracepoint/version.rb", r'VERSION = "(.*)"') == __version__
    assert found(header, r'#define SDT_VERSION "(.*)"') == __version__
    numbers = r"#define SDT_VERSION_NUMBER SDT_VERSION_OF\((\d+), (\d+), (\d+)\)"
    assert found(header, numbers) == __version__
    # setuptools reads it without importing what is not there yet.
    assert (
        'version = { attr = "rbtrace_py.__version__" }'
        in (ROOT / "pyproject.toml").read_text()
    )


def test_the_changelog_has_it_with_a_date() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "[Unreleased]"
    for head in heads[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", head)
    assert heads[1].startswith(f"[{__version__}] - ")
