"""Golden files: the output that programs read, byte for byte.

``RBTRACE_GOLDEN=write .venv/bin/pytest tests/golden`` writes them again. The help of
every command is in docs/commands instead. Recordings are made only once
(``golden_recordings``) and must stay readable.
"""

from __future__ import annotations

import os
from pathlib import Path

from rbtrace_py import __version__

FOLDER = Path(__file__).parent
VERSION = b"rbtrace-py VERSION"


def check(name: str, data: bytes) -> None:
    """Compare ``data`` with the golden file ``name``, or write the file."""
    data = data.replace(f"rbtrace-py {__version__}".encode(), VERSION)
    path = FOLDER / name
    if os.environ.get("RBTRACE_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    expected = path.read_bytes()
    # Lines, where there are any, since pytest shows how these differ.
    assert data.split(b"\n") == expected.split(b"\n"), f"{path} is not what is written"
