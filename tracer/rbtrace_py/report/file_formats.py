"""The format of a file, derived from its name."""

from __future__ import annotations

from rbtrace_py.errors import UsageError

RECORDING = "recording"
"""Format of recordings, which contain every sample; not among ``formats.FORMATS``."""

_BY_ENDING = {
    ".svg": "flamegraph",
    ".json": "speedscope",
    ".pb.gz": "pprof",
    ".pprof": "pprof",
    ".callgrind": "callgrind",
    ".folded": "folded",
    ".txt": "folded",
    ".rbrec": RECORDING,
}
_OF_OTHERS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".html", ".htm",
              ".xml", ".csv")  # fmt: skip
"""Extensions of unsupported formats. Files with these names would not open."""
_NAMES = {
    "flamegraph": "a flame graph",
    "speedscope": "a speedscope profile",
    "pprof": "a pprof profile",
    "callgrind": "a callgrind profile",
    "folded": "folded stacks",
    RECORDING: "a recording",
}


def format_of_file(path: str | None) -> str | None:
    """Return the format that a file's name implies, or None.

    Raises:
        UsageError: The name implies an unsupported format.
    """
    name = (path or "").lower()
    for ending, format_ in _BY_ENDING.items():
        if name.endswith(ending):
            return format_
    if name.endswith(_OF_OTHERS):
        raise UsageError(
            f"unknown format: {name.rpartition('.')[2]}",
            "Name the file .txt or .json; stacks also .svg (a flame graph, for a"
            " browser), .pb.gz, .callgrind, .folded or .rbrec",
        )
    return None


def described(format_: str) -> str:
    """Return a description of a format, such as ``a flame graph``."""
    return _NAMES.get(format_, f"the format {format_}")


def is_recording_file(path: str | None) -> bool:
    return format_of_file(path) == RECORDING


def is_json_file(path: str | None) -> bool:
    return (path or "").lower().endswith(".json")


def check_text_file(path: str | None, command: str) -> None:
    """Check that a file's name fits a report in text or JSON.

    Args:
        path: Path of the file, or None for standard output.
        command: Name of the command that writes the report.

    Raises:
        UsageError: The name implies another format.
    """
    found = format_of_file(path)
    if found is None or found in ("speedscope", "folded"):
        return
    raise UsageError(
        f"{path} would be {described(found)}, but {command} writes text or JSON",
        "Use `rbtrace-py stacks` or `record` for such files; or name it .txt or .json",
    )
