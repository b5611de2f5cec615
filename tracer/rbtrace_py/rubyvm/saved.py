"""A layout in a file, written by ``layout --save`` and read by ``--layout``.

A stripped Ruby can be read with the layout of its unstripped build. The file is
untrusted input: its offsets are checked against the process's memory, like the offsets
of any other source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rbtrace_py.errors import UsageError
from rbtrace_py.rubyvm.layout import Field, Layout, Table
from rbtrace_py.rubyvm.layouts import OFFSETS

SCHEMA = "rbtrace-py/saved-layout"
LARGEST_FILE = 1 << 16
"""Maximum bytes; a layout has about 3,000."""
_LARGEST_OFFSET = 1 << 16
_VERSION = re.compile(r"\d{1,2}\.\d{1,2}\.\d{1,2}", re.ASCII)
_BUILD_ID = re.compile(r"[0-9a-f]{0,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SavedLayout:
    """Offsets of the Ruby ``version`` in the file with ``build_id`` ("": none)."""

    version: str
    build_id: str
    offsets: Mapping[str, int]

    def fields(self, table: Table) -> dict[str, Field]:
        """Return its offsets as fields of ``table``, as far as the table has them."""
        return {
            name: Field(offset, table.fields[name].member)
            for name, offset in self.offsets.items()
            if name in table.fields
        }


def write_saved(version: str, build_id: str, layout: Layout) -> str:
    """Return the text of the file."""
    offsets = {name: getattr(layout.offsets, name) for name in OFFSETS}
    document = {
        "schema": SCHEMA,
        "version": 1,
        "ruby_version": version,
        "build_id": build_id,
        "offsets": {name: one for name, one in offsets.items() if one is not None},
    }
    return json.dumps(document, indent=1) + "\n"


def read_saved(data: bytes, path: str) -> SavedLayout:
    """Parse a file's contents; raises UsageError if it is not a saved layout."""
    try:
        document = json.loads(data) if len(data) <= LARGEST_FILE else None
    except (ValueError, RecursionError):
        document = None
    saved = _checked(document)
    if saved is None:
        raise UsageError(
            f"{path} is not a saved layout", "Write one with rbtrace-py layout --save"
        )
    return saved


def _checked(document: object) -> SavedLayout | None:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return None
    version, build_id = document.get("ruby_version"), document.get("build_id")
    offsets = document.get("offsets")
    if document.get("version") != 1 or not isinstance(offsets, dict):
        return None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        return None
    if not isinstance(build_id, str) or not _BUILD_ID.fullmatch(build_id):
        return None
    if not all(
        type(one) is int and 0 <= one < _LARGEST_OFFSET for one in offsets.values()
    ):
        return None
    known = {str(name): one for name, one in offsets.items() if name in OFFSETS}
    return SavedLayout(version, build_id, known)
