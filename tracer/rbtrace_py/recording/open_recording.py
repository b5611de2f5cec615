"""Opening of recordings, whether of samples or of calls."""

from __future__ import annotations

from pathlib import Path

from rbtrace_py.errors import UsageError
from rbtrace_py.model.recording_meta import CALLS_MODE
from rbtrace_py.recording.blocks import MAGIC
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.recording_filters import Filters
from rbtrace_py.recording.sample_recording import Path_, Recording


def is_recording(path: Path_) -> bool:
    """Return whether a file begins as a recording, of any version, or is a folder.

    Raises:
        OSError: The file cannot be read.
    """
    if Path(path).is_dir():
        return True
    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def has_calls(path: Path_) -> bool:
    """Return whether a file is a recording of calls, or a folder of them.

    Raises:
        BadRecording: This version cannot read the recording.
        OSError: The file cannot be read.
    """
    if Path(path).is_dir():
        return True
    return is_recording(path) and Recording(path).meta.mode == CALLS_MODE


def open_recording(
    path: Path_, filters: Filters | None = None
) -> Recording | CallsRecording:
    """Open a file of ``record`` or ``calls --record``, or a folder of ``calls --keep``.

    Args:
        path: The file or folder.
        filters: Conditions on its samples or calls. Without them, all are read.

    Returns:
        A recording to iterate over, or to ``read`` into a profile.

    Raises:
        BadRecording: It is not a recording, or this version cannot read it.
        UsageError: ``filters`` has states, and the recording has calls.
        OSError: It cannot be read.
    """
    if not has_calls(path):
        return Recording(path, filters)
    if filters and filters.states:
        raise UsageError("recordings of calls have no states")
    return CallsRecording(path, filters)
