"""Layouts that were learnt, kept by the contents of the files they were learnt from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, fields
from enum import Enum
from typing import Any, get_type_hints

from rbtrace_py.linux import cache
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.calibration.script import SCRIPT
from rbtrace_py.rubyvm.detect import Ruby, Version
from rbtrace_py.rubyvm.layout import Layout, Offsets, Origin, Traits

_KIND = "calibration"
_FORMAT = 1
"""Part of each key: to be raised when the search finds something else than before."""
_LARGEST = 1 << 28
"""Bytes of a file that is hashed."""
_LARGEST_OFFSET = 1 << 16


def key_of(process: Process, ruby: Ruby, version: Version) -> str | None:
    """Return the name of the entry for the Ruby of ``process``, None if it has none.

    Of the contents of its library and its program, as a build-id can be forged; and
    of its user and root, as it is their files that are run.
    """
    program = process.open("exe")
    try:
        parts = [cache.content_hash(fd, _LARGEST) for fd in (ruby.file.fd, program)]
        root = os.stat(f"/proc/{process.pid}/root/.")
    except OSError:
        return None
    finally:
        os.close(program)
    if None in parts:
        return None
    place = (process.uid, root.st_dev, root.st_ino)
    names = sorted({*_names(Offsets), *_names(Traits)})
    words = [_FORMAT, *parts, *place, version.text, SCRIPT, *names]
    return hashlib.sha256("\n".join(map(str, words)).encode()).hexdigest()


def load(key: str) -> Layout | None:
    """Return the layout kept as ``key``, None if there is none that makes sense."""
    try:
        return from_json(cache.load(_KIND, key))
    except (ValueError, KeyError, TypeError):
        return None


def store(key: str, layout: Layout) -> None:
    """Keep ``layout`` as ``key``; where that cannot be done it is not."""
    cache.store(_KIND, key, to_json(layout))


def _names(kind: type[Offsets] | type[Traits]) -> list[str]:
    return [field.name for field in fields(kind)]


def to_json(layout: Layout) -> dict[str, Any]:
    """A layout as plain data."""
    traits: dict[str, Any] = {}
    for name in _names(Traits):
        value = getattr(layout.traits, name)
        traits[name] = value.value if isinstance(value, Enum) else value
    traits["frame_magics"] = dict(layout.traits.frame_magics)
    return {
        "version": layout.version,
        "traits": traits,
        "offsets": asdict(layout.offsets),
        "origins": {name: origin.value for name, origin in layout.origins.items()},
    }


def from_json(data: dict[str, Any]) -> Layout:
    """The layout that ``to_json`` made ``data`` of; raises ValueError and the like."""
    hints = get_type_hints(Traits)
    traits = {}
    for name in _names(Traits):
        kind, value = hints[name], data["traits"][name]
        is_enum = isinstance(kind, type) and issubclass(kind, Enum)
        traits[name] = kind(value) if is_enum else value
    offsets = {name: data["offsets"][name] for name in _names(Offsets)}
    for value in offsets.values():
        if value is not None and not (
            type(value) is int and 0 <= value < _LARGEST_OFFSET
        ):
            raise ValueError(value)
    origins = {str(name): Origin(word) for name, word in data["origins"].items()}
    return Layout(str(data["version"]), Traits(**traits), Offsets(**offsets), origins)
