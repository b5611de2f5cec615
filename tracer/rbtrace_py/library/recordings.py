"""Recordings of samples and of calls, read in a Python program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rbtrace_py.aggregate.idle import without_idle
from rbtrace_py.errors import UsageError
from rbtrace_py.library.streams import MethodCall, method_calls
from rbtrace_py.recording.call_recording import CallsRecording
from rbtrace_py.recording.open_recording import open_recording
from rbtrace_py.recording.recording_filters import Filters
from rbtrace_py.recording.sample_recording import Recorded


def read_recording(
    path: str, filters: Filters | None = None, *, idle: bool = False
) -> Recorded:
    """Read a recording, as ``rbtrace-py report`` does.

    Args:
        path: File of samples or calls, or folder of ``calls --keep``. Calls are folded:
            the weight of a stack is the time in its newest method, in ns.
        filters: Conditions on samples and calls. Without them, all are read.
        idle: Include idle samples, in which a thread waits for work.

    Raises:
        BadRecording: The file is not a recording.
        UsageError: A filter's expression is malformed, or the filters select states of
            calls.
        OSError: The file cannot be read.
    """
    found = open_recording(path, filters).read()
    return found if idle else replace(found, profile=without_idle(found.profile))


def read_calls(path: str, filters: Filters | None = None) -> Iterator[MethodCall]:
    """Read each call of a recording, in the order in which calls ended.

    Args:
        path: File of ``rbtrace-py calls --record``, or folder of ``calls --keep``.
        filters: Conditions on calls. Without them, all are read.

    Returns:
        Calls, read from the file as you iterate.

    Raises:
        BadRecording: The file is not a recording.
        UsageError: The file contains samples, not calls, or the filters do not apply to
            calls.
        OSError: The file cannot be read.
    """
    recording = open_recording(path, filters)
    if not isinstance(recording, CallsRecording):
        raise UsageError(f"{path} has samples, not calls", "Use read_recording")
    return method_calls(recording, recording.names)
