"""A timeline of a Rails application, read by Perfetto's published schema."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

from commands import Tracer, run
from processes import LIB, ROOT, TIMEOUT, read_line, times
from rbtrace_py.aggregate.callrecording import CallsRecording
from rbtrace_py.aggregate.calls import CallEventKind

ANY_PORT = "tcp://127.0.0.1:0"
APP = ROOT / "tests" / "bench" / "rails"
THREADS = 3
BEGIN, END = schema.TrackEvent.TYPE_SLICE_BEGIN, schema.TrackEvent.TYPE_SLICE_END
COLLECTION = "garbage_collect"


class Rails:
    """The bench's application under puma, with the agent."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            ["puma", "-t", f"{THREADS}:{THREADS}", "-b", ANY_PORT, "config.ru"],
            cwd=APP,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "SHOP_DATABASE": str(folder / "shop.sqlite3"),
                "RUBYOPT": f"-I{LIB} -rtracepoint/agent",
            },
        )
        self._port = self._listening_at()
        self.get()

    def _listening_at(self) -> int:
        """Return the port; puma says it once it takes connections."""
        log = []
        while line := read_line(self.process.stdout):
            log.append(line)
            if found := re.search(r"Listening on http://127\.0\.0\.1:(\d+)", line):
                return int(found[1])
        self.close()
        raise AssertionError("the application did not begin\n" + "\n".join(log))

    def get(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, TIMEOUT)
        connection.request("GET", "/items")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert answer.status == 200

    def get_often(self, count: int) -> None:
        """Ask for ``count`` pages in each of several threads."""
        asking = [
            threading.Thread(target=lambda: [self.get() for _ in range(count)])
            for _ in range(THREADS)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=TIMEOUT)


@pytest.fixture
def rails(root: None, tmp_path: Path) -> Iterator[Rails]:
    words = ["ruby", "-e", "require 'rails'; require 'sqlite3'"]
    has_rails = not subprocess.run(words, capture_output=True).returncode
    if not has_rails or not shutil.which("puma"):
        pytest.skip("no Rails, sqlite3 or puma: scripts/setup.sh --test installs them")
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
