"""The known layouts: one file per minor version, with the structures' member names.

``ruby_2_1.py`` is complete. Each later file contains the differences from the previous
version.

Since 2.7 the layout depends on one configuration option: ``rb_jmpbuf_t`` has 40 bytes
with ``__builtin_setjmp`` and 200 without. The tables assume the former, gcc's default.
Debian's 3.3 and 3.4 use the latter. It moves ``fiber_prev`` and ``fiber_status``, and
in 2.7 and 3.0 also ``th_name``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from importlib import import_module

from rbtrace_py.errors import UnknownRuby
from rbtrace_py.rubyvm.layout import Field, Layout, Offsets, Origin, Table, changed

VERSIONS = (
    *((2, minor) for minor in range(1, 8)),
    *((3, minor) for minor in range(5)),
    (4, 0),
    (4, 1),
)
"""Versions that have a file, ascending."""

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?!\d)", re.ASCII)


def parse(version: str) -> tuple[int, int, int]:
    """Parse ``3.1.2`` as ``(3, 1, 2)``; a missing last number is 0.

    Raises UnknownRuby if it is not a version.
    """
    match = _VERSION.match(version)
    if match is None:
        raise UnknownRuby(
            f"{version[:40]!r} is not a Ruby version",
            "Give the version as in --ruby-version 3.3.8",
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


def table_for(version: str) -> Table:
    """Return the table of ``version`` (``3.1.2``), including changes of patch releases.

    Raises UnknownRuby if its minor version has no file; the hint names the nearest.
    """
    major, minor, teeny = parse(version)
    if (major, minor) not in VERSIONS:
        raise _unknown(version, (major, minor))
    name = f"ruby_{major}_{minor}"
    module = import_module(f"rbtrace_py.rubyvm.layouts.{name}")
    fields: Mapping[str, Field] = module.FIELDS
    for first, differences in getattr(module, "CHANGES", {}).items():
        if teeny >= first:
            fields = changed(fields, differences)
    table = Table((major, minor), module.TRAITS, fields, module.NEWEST)
    later = None
    for day, differences in reversed(getattr(module, "DEVELOPMENT", {}).items()):
        fields = changed(module.FIELDS, differences)
        later = replace(table, fields=fields, development=day, later=later)
    return later or table


def _unknown(version: str, minor: tuple[int, int]) -> UnknownRuby:
    near = "{}.{}".format(*nearest(minor))
    return UnknownRuby(
        f"unsupported version: Ruby {version}",
        f"Use the nearest layout with --ruby-version {near}; it is right only if the"
        " structures did not change",
    )


def nearest(minor: tuple[int, int]) -> tuple[int, int]:
    """Return the known minor version nearest to ``minor``; the later one of two.

    A major version counts as ten minor ones.
    """
    wanted = 10 * minor[0] + minor[1]
    return min(
        VERSIONS,
        key=lambda known: (
            abs(10 * known[0] + known[1] - wanted),
            -known[0],
            -known[1],
        ),
    )


def layout_from(
    table: Table,
    version: str,
    picked: Mapping[str, tuple[Origin, Field]] | None = None,
) -> Layout:
    """Return the layout of ``version``: its table, overridden by ``picked``."""
    fields = {name: (Origin.TABLE, field) for name, field in table.fields.items()}
    fields.update(picked or {})
    offsets = {
        name: fields[name][1].offset if name in fields else None for name in OFFSETS
    }
    origins = {name: origin for name, (origin, _) in fields.items()}
    return Layout(version, table.traits, Offsets(**offsets), origins)  # type: ignore[arg-type]


OFFSETS = tuple(field.name for field in fields_of(Offsets))
"""The names of the fields of ``Offsets``."""
