"""A timeline of a Rails application, read by Perfetto's published schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rails import THREADS, Rails

from commands import Tracer, run
from perfetto_traces import read, slices_of
from processes import times
from rbtrace_py.aggregate.calls import CallEventKind
from rbtrace_py.recording.call_recording import CallsRecording

COLLECTION = "garbage_collect"


@pytest.fixture
def rails(root: None, tmp_path: Path) -> Iterator[Rails]:
    app = Rails(tmp_path)
    yield app
    app.close()


@pytest.mark.slow
def test_each_slice_is_whole(
    rails: Rails, trace: Callable[..., Tracer], tmp_path: Path
) -> None:
    """The slices are as many as the calls. Each ends within its parent, and times
    rise."""
    path = tmp_path / "rails.rbrec"
    words = ("--gc", "--yes", "--record", path)
    tracer = trace("calls", rails.process.pid, *words)
    pages = max(5, times(20))  # with fewer pages, Ruby may not collect garbage
    rails.get_often(pages)
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
    assert found["ItemsController#index"] == THREADS * pages
    states = {name for t in slices.keys() - on_calls.keys() for name in slices[t]}
    assert any(name.startswith("Running") for name in states)


def names_of(path: Path) -> dict[int, str]:
    """Return the name of each named thread."""
    return {tid: name for (_, tid), name in CallsRecording(path).names.items() if name}
