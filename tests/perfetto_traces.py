"""Traces for Perfetto, read with its published schema."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

BEGIN, END = schema.TrackEvent.TYPE_SLICE_BEGIN, schema.TrackEvent.TYPE_SLICE_END


def read(path: Path) -> list[Any]:
    """Return the packets, after checking that the schema knows all of their fields."""
    parsed = schema.Trace.FromString(path.read_bytes())
    # DiscardUnknownFields drops fields that are not in the schema.
    before = parsed.ByteSize()
    parsed.DiscardUnknownFields()
    assert parsed.ByteSize() == before == path.stat().st_size
    return list(parsed.packet)


def slices_of(packets: list[Any]) -> dict[int, list[str]]:
    """Return the names of each track's slices, after checking their nesting."""
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
            # Ends are in the order of the begins: inner slices end first.
            open_[track].pop()
    assert not any(open_.values())
    return found
