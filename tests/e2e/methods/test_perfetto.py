"""A timeline of a Rails application, read by Perfetto's published schema."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema
from rails import THREADS, Rails

from commands import Tracer, run
from processes import times
from rbtrace_py.aggregate.callrecording import CallsRecording
from rbtrace_py.aggregate.calls import CallEventKind

BEGIN, END = schema.TrackEvent.TYPE_SLICE_BEGIN, schema.TrackEvent.TYPE_SLICE_END
COLLECTION = "garbage_collect"


@pytest.fixture
def rails(root: None, tmp_path: Path) -> Iterator[Rails]:
    app = Rails(tmp_path)
    yield app
    app.close()


def test_each_slice_is_whole(
    rails: Rails, trace: Callable[..., Tracer], tmp_path: Path
) -> None:
    """There are as many as calls, each ends, none beyond its parent, and times rise."""
    path = tmp_path / "rails.rbrec"
    words = ("--gc", "--yes", "--record", path)
    tracer = trace("calls", rails.process.pid, *words)
    rails.get_often(times(20))
    _, err, code = tracer.finish()
    assert ("no losses" in err, code) == (True, 0), err
    _, err, code = run("report", path, "--format", "perfetto", "-o", tmp_path / "trace")
    assert code == 0, err
    packets = read(tmp_path / "trace")
    tracks = {
        each.track_descriptor.uuid: each.track_descriptor
        for each in packets
        if each.HasField("track_descriptor")
    }
    slices = slices_of(packets)
    serving = {tid: name for tid, name in names_of(path).items() if " tp " in name}
    assert len(serving) == THREADS
    named = {each.name for each in tracks.values()}
    assert {f"{name} {tid}" for tid, name in serving.items()} < named
    assert all(tracks[track].name for track in slices)
    assert all(tracks[track].parent_uuid in tracks for track in slices)
    on_calls = {t: found for t, found in slices.items() if "CPU" not in tracks[t].name}
    found = Counter(name for each in on_calls.values() for name in each)
    kinds = Counter(each.event.what for each in CallsRecording(path))
    assert found[COLLECTION] == kinds[CallEventKind.COLLECTED] > 0
    assert found.total() - found[COLLECTION] == kinds[CallEventKind.ENTERED]
    assert found["ItemsController#index"] == THREADS * times(20)
    states = {name for t in slices.keys() - on_calls.keys() for name in slices[t]}
    assert any(name.startswith("Running") for name in states)


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


def names_of(path: Path) -> dict[int, str]:
    """Return the name of each thread that has one."""
    return {tid: name for (_, tid), name in CallsRecording(path).names.items() if name}
