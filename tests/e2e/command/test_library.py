"""The examples of the library ``rbtrace_py`` run, and their results are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter

import pytest

import rbtrace_py
from processes import ROOT, margin, run_time
from rbtrace_py.aggregate.sampling import Statistics
from rbtrace_py.model.recording_meta import Meta
from rbtrace_py.recording.sample_recording import RecordingWriter
from sample_makers import sample

PAGE = (ROOT / "docs" / "library.md").read_text()
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$(?:\n\n^```\n(.*?)^```$)?", PAGE, re.MULTILINE | re.DOTALL
)
"""Examples and their exact output, if it is known."""
WAITS = {
    "listened": r'"raise"',
    "armed": r"\b(methods|calls)\(",
    "traced": r"\b(latency|count|values|trace)\(",
}
"""The attachment for which till.rb waits before it begins, by the example's code."""
LATE_NS = 20_000_000
"""On-CPU or runnable time of a thread that the kernel has not counted yet."""
SHARES = {"half": 50, "third": 30, "fifth": 20}


@pytest.fixture
def target(start):
    return start("stacks/burning.rb")


def told(code):
    """Return the steps of till.rb for an example, or nothing if the example reads
    stacks."""
    waits = [word for word, pattern in WAITS.items() if re.search(pattern, code)]
    # An example that blocks ends with the program.
    return waits[:1] + ["exit"] * ("seconds=10" in code)


@pytest.mark.parametrize(("code", "expected"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_run(
    code, expected, start, tmp_path, monkeypatch, capsys, request
):
    if "pandas" in code:
        pytest.importorskip("pandas")
    words = told(code)
    if words:
        request.getfixturevalue("root")
    target = start(
        "methods/till.rb" if words or "eval(" in code else "stacks/burning.rb"
    )
    for word in words:
        target.tell(word)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/library.md", "exec"), {"PID": target.pid})
    out, err = capsys.readouterr()
    assert out
    assert err == ""
    if expected:
        lines = [re.sub(r"[\d.]+ ms", "T ms", text) for text in (out, expected)]
        assert lines[0] == lines[1]


def test_there_are_examples():
    assert (len(EXAMPLES), sum(bool(expected) for _, expected in EXAMPLES)) == (18, 12)


def shares(profile):
    found = {
        share.frame.name.partition("#")[2]: share.total
        for share in profile.counts.by_method()
    }
    return {name: 100 * found[name] / profile.counts.weight for name in SHARES}


def weights_by_thread(profile):
    found = Counter()
    for row in profile.counts.rows():
        found[row.thread] += row.weight
    return found


@pytest.mark.alone
def test_a_profile_has_the_right_shares(target):
    with rbtrace_py.attach(target.pid, rate=499) as ruby:
        before = run_time(target.pid)
        profile = ruby.profile(seconds=4)
        ran = run_time(target.pid) - before
        assert {thread.name for thread in ruby.threads} >= {"burner", "idle 0"}
    counts = profile.counts
    assert counts.statistics.engine == "memory"
    off = margin(counts.statistics.samples, 4)
    assert shares(profile) == pytest.approx(SHARES, abs=off)
    assert (profile.unit, counts.weight) == ("ns", pytest.approx(ran, rel=0.02))
    # Each pass has at most one sample of the burner, and seldom one of another thread.
    rounds = counts.statistics.rounds
    assert 0.9 * rounds <= counts.statistics.samples <= 1.05 * rounds
    assert sum(rbtrace_py.fold(profile).values()) == profile.counts.weight


def test_samples_end_when_there_are_enough(target):
    with rbtrace_py.attach([target.pid], mode="wall", rate=200) as ruby:
        found = list(ruby.samples(count=23))
        counted = [
            one for one in found if not one.flags & rbtrace_py.SampleFlags.RUN_TIME
        ]
        assert len(counted) == ruby.statistics.samples == 23
        assert len({sample.thread for sample in found}) == 5
        assert list(ruby.samples(count=0)) == []
        more = ruby.profile(count=30)
    assert more.counts.statistics.samples == 30
    weights = weights_by_thread(more)
    assert len(weights) == 5
    longest = more.counts.statistics.duration_ns + LATE_NS
    for weight in weights.values():
        assert 0.95 * 5 / 200 * 1e9 - LATE_NS <= weight <= longest
    times = [sample.time_ns for sample in found]
    assert times == sorted(times)


def compute_for(seconds):
    """Hold Python's lock and the CPU, as a busy program does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_passes_that_were_missed_are_told(target):
    """The sampling program is busy with other work for half of the time."""
    with rbtrace_py.attach(target.pid, mode="wall") as ruby:
        assert ruby.notes == ()
        for _ in ruby.samples(seconds=1):
            if ruby.statistics.samples == 1:
                compute_for(1)
        found = ruby.statistics
        (note,) = [text for text in ruby.notes if "late sampling" in text]
    wanted = found.rate * found.duration_ns / 1e9
    assert found.rounds + found.late >= 0.95 * wanted > 90
    assert found.late > 80
    assert note.startswith(f"{found.late} late sampling passes (")


def test_samples_end_with_the_target(target):
    with rbtrace_py.attach(target.pid) as ruby:
        for number, _ in enumerate(ruby.samples()):
            if number == 5:
                target.process.kill()
        assert ruby.is_over


@pytest.mark.parametrize("mode", ["wall", "cpu"])
def test_a_recording_has_what_was_sampled(target, tmp_path, mode):
    path = str(tmp_path / "a.rbrec")
    with rbtrace_py.attach(target.pid, mode=mode) as ruby:
        before = run_time(target.pid)
        ruby.record(path, count=50)
        ran = run_time(target.pid) - before
        samples = ruby.statistics.samples
    recorded = rbtrace_py.read_recording(path)
    assert recorded.notes == ()
    counts = recorded.profile.counts
    assert (recorded.profile.unit, counts.statistics.samples) == ("ns", samples)
    if mode == "wall":
        weights = weights_by_thread(recorded.profile)
        assert (samples, len(weights)) == (50, 5)
        *_, second, most = sorted(weights.values())
        assert most - second <= LATE_NS
        assert counts.weight >= 5 * 0.95 * 9 / 99 * 1e9 - LATE_NS
        assert counts.weight <= 5 * counts.statistics.duration_ns + LATE_NS
    else:
        assert 50 <= samples <= 52  # a pass is whole
        # It also runs while the recording is opened and closed.
        assert 0.8 * ran <= counts.weight <= 1.01 * ran
    again = rbtrace_py.count_samples(recorded.profile.stream())
    assert rbtrace_py.fold(again) == rbtrace_py.fold(recorded.profile)


def test_idle_samples_are_left_out_as_in_reports(tmp_path):
    path = str(tmp_path / "a.rbrec")
    pool = "Pool#wait@/gems/pool-1.0.0/lib/pool.rb:3"
    sleeping = rbtrace_py.ThreadState.SLEEPING
    with RecordingWriter(path, Meta(mode="wall"), Statistics()) as writer:
        writer.add(sample(pool, "c!Thread::Queue#pop", state=sleeping, weight=30))
        writer.add(sample("Job#work@/app/job.rb:4", weight=4))
    profile = rbtrace_py.read_recording(path).profile
    assert (profile.counts.weight, profile.counts.statistics.idle) == (4, 30)
    assert [one.weight for one in profile.stream()] == [4]
    everything = rbtrace_py.read_recording(path, idle=True).profile
    assert (everything.counts.weight, everything.counts.statistics.idle) == (34, 0)


def test_every_format_can_be_rendered(target):
    with rbtrace_py.attach(target.pid) as ruby:
        profile = ruby.profile(seconds=0.3)
    for name in rbtrace_py.formats():
        assert rbtrace_py.render(profile, name, threads=True, title="a")
    with pytest.raises(rbtrace_py.UsageError):
        rbtrace_py.render(profile, "no such")


def test_errors():
    with pytest.raises(rbtrace_py.NoSuchTarget):
        rbtrace_py.attach(1 << 22)
    with pytest.raises(rbtrace_py.UsageError):
        rbtrace_py.attach([])
    with pytest.raises(rbtrace_py.UsageError):
        rbtrace_py.attach(1, mode="off")
    with pytest.raises(rbtrace_py.NotRuby):
        rbtrace_py.dump(os.getpid())


def test_all_its_names_are_there():
    from rbtrace_py import library

    assert sorted(rbtrace_py.__all__) == sorted([*library.__all__, "__version__"])
    assert [name for name in library.__all__ if not hasattr(rbtrace_py, name)] == []
    assert set(rbtrace_py.__all__) <= set(dir(rbtrace_py))
    with pytest.raises(AttributeError):
        rbtrace_py.no_such_name  # noqa: B018


def test_importing_it_is_cheap():
    code = "import sys, rbtrace_py; print([n for n in sys.modules if 'rbtrace' in n])"
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT / "tracer", check=True
    )
    assert done.stdout == "['rbtrace_py']\n"
