"""Description of a process's Ruby, and the sources of its layout."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum

from rbtrace_py.errors import UnknownRuby
from rbtrace_py.linux.process import Process
from rbtrace_py.model.vm_layout import Offset, VmDescription
from rbtrace_py.rubyvm.attach import Attached, attach
from rbtrace_py.rubyvm.layout import Field, Offsets, Origin, Traits
from rbtrace_py.rubyvm.layouts import table_for
from rbtrace_py.rubyvm.saved import SavedLayout, write_saved

SOURCES_BY_NAME = {"dwarf": Origin.DWARF, "table": Origin.TABLE}


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """Options of a description.

    Attributes:
        ruby_version: Version to use instead of the detected one.
        source: Key of ``SOURCES_BY_NAME``: the only source to use.
        saved: Layout from a file, which takes precedence.
    """

    ruby_version: str | None = None
    source: str | None = None
    saved: SavedLayout | None = None


def describe(process: Process, options: LayoutOptions) -> VmDescription:
    """Attach to ``process`` and describe its Ruby; raise as ``rubyvm.attach`` does."""
    attached = _attach(process, options)
    symbols = attached.symbols
    return VmDescription(
        pid=process.pid,
        ruby_version=attached.version.text,
        version_origin=attached.version.origin,
        file=attached.path,
        build_id=attached.build_id,
        base=attached.base,
        vm=attached.vm.address,
        vm_origin=attached.vm.origin,
        symbols=None if symbols is None else symbols.address,
        symbols_origin="" if symbols is None else symbols.origin,
        traits=_traits(attached.layout.traits),
        offsets=tuple(_offsets(attached)),
        notes=(*attached.notes, *attached.evidence),
    )


def save(process: Process, options: LayoutOptions) -> str:
    """Return the text of a layout file for ``--layout``; raise as ``describe`` does."""
    attached = _attach(process, options)
    return write_saved(attached.version.text, attached.build_id, attached.layout)


def _attach(process: Process, options: LayoutOptions) -> Attached:
    source = None if options.source is None else SOURCES_BY_NAME[options.source]
    return attach(process, options.ruby_version, options.saved, source)


def _traits(traits: Traits) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for field in fields(Traits):
        value = getattr(traits, field.name)
        if isinstance(value, Mapping):
            value = dict(value)
        found[field.name] = value.value if isinstance(value, Enum) else value
    return found


def _offsets(attached: Attached) -> list[Offset]:
    layout = attached.layout
    words: Mapping[str, Field] = {}
    with suppress(UnknownRuby):
        table = table_for(attached.version.text)
        words = {**(table.later or table).fields, **table.fields}
    found = []
    for field in fields(Offsets):
        name = field.name
        value = getattr(layout.offsets, name)
        if value is not None:
            member = words[name].member if name in words else ""
            origin = layout.origins.get(name)
            source = "" if origin is None else origin.value
            is_confirmed = name in attached.agreed
            found.append(Offset(name, member, value, source, is_confirmed))
    return found
