"""Traces for Perfetto, read by its published schema."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

BEGIN, END = schema.TrackEvent.TYPE_SLICE_BEGIN, schema.TrackEvent.TYPE_SLICE_END


def read(path: Path) -> list[Any]:
    """The packets; nothing in them is unknown to the schema."""
    parsed = schema.Trace.FromString(path.read_bytes())
    # A field that the schema does not have is dropped with the unknown ones.
    before = parsed.ByteSize()
    parsed.DiscardUnknownFields()
    assert parsed.ByteSize() == before == path.stat().st_size
    return list(parsed.packet)


def slices_of(packets: list[Any]) -> dict[int, list[str]]:
    """Names of the slices of each track, checked to be nested in each other."""
    names: dict[int, str] = {}
    open_: defaultdict[int, list[str]] = defaultdict(list)
    found: defaultdict[int, list[str]] = defaultdict(list)
    last: dict[int, int] = {}
    for packet in packets:
        for entry in packet.interned_data.event_names:
            names[entry.iid] = entry.name
        event = packet.track_event
        if event.type not in (BEGIN, END):
            continue
        track = event.track_uuid
        assert packet.timestamp >= last.get(track, 0)
        last[track] = packet.timestamp
        if event.type == BEGIN:
            open_[track].append(names[event.name_iid])
            found[track].append(names[event.name_iid])
        else:
            # Ends are in the order of the begins: what is nested ends first.
            open_[track].pop()
    assert not any(open_.values())
    return found
