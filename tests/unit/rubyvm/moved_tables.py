"""Tables of layouts with wrong offsets, for tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rbtrace_py.rubyvm import layout_sources
from rbtrace_py.rubyvm.layout import Table


def with_wrong(monkeypatch: pytest.MonkeyPatch, **moved: int) -> None:
    """Let each table claim higher offsets for these fields."""
    right = layout_sources.table_for

    def wrong(version: str) -> Table:
        table = right(version)
        fields = dict(table.fields)
        for name, by in moved.items():
            field = fields[name]
            fields[name] = replace(field, offset=field.offset + by)
        return replace(table, fields=fields)

    monkeypatch.setattr(layout_sources, "table_for", wrong)
