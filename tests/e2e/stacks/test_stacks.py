"""``stacks`` and ``record`` of a program whose threads are at known places."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from terminal import Terminal

from commands import run
from processes import TARGETS, Target

SOURCE = str(TARGETS / "stacks/states.rb")
MAIN = f"<main> {SOURCE};Object#wait {SOURCE};IO#gets {SOURCE}"
NAPPING = f"block in <main> {SOURCE};Work.nap {SOURCE};Kernel#sleep {SOURCE}"
WATCHING = f"block in <main> {SOURCE};Work.watch {SOURCE};IO.select {SOURCE}"
NOT_SAMPLED = "(running, not sampled)"
BURNING = f"block (2 levels) in <main> {SOURCE};Work.burn {SOURCE}"


@pytest.fixture
def still(start: Callable[..., Target], root: None) -> Target:
    """A program whose threads are all idle."""
    return standing(start("stacks/states.rb", "0"))


@pytest.fixture
def busy(start: Callable[..., Target], root: None) -> Target:
    """A program whose two threads burn CPU and share the GVL."""
    return standing(start("stacks/states.rb", "2"))


def standing(target: Target) -> Target:
    target.wait_until_it_reads()
    return target


def done(*words: object) -> str:
    """Check that ``rbtrace-py`` succeeded, and return its output."""
    out, err, code = run(*words)
    assert code == 0, err
    return out


def sampled(*words: object) -> tuple[Counter[str], int]:
    """Run a command. Return weights by stack, and the reported number of samples."""
    out, err, code = run(*words)
    assert code == 0, err
    return folded(out), samples(err)


def samples(err: str) -> int:
    """Return the number of samples that a command reports."""
    (number,) = re.findall(r"([\d,]+) samples? in ", err)
    return int(number.replace(",", ""))


def one_weight(stacks: Counter[str], passes: int, rate: int = 99) -> int:
    """Return the weight that each of these stacks has: the time of so many passes.

    The first pass comes within a period, and the last one at the earliest in its own
    period.
    """
    (weight,) = set(stacks.values())
    assert weight >= 0.95 * (passes - 1) / rate * 1e9
    return weight


def folded(text: str) -> Counter[str]:
    """Return weights by stack, and check that no stack is listed twice."""
    pairs = [line.rsplit(" ", 1) for line in text.splitlines()]
    assert len({stack for stack, _ in pairs}) == len(pairs)
    return Counter({stack: int(weight) for stack, weight in pairs})


def line(text: str) -> int:
    """Return the number of the program's first line that contains ``text``."""
    lines = Path(SOURCE).read_text().splitlines()
    return next(number for number, one in enumerate(lines, 1) if text in one)


def test_threads_that_stand_still_give_exactly_their_stacks(still: Target) -> None:
    stacks, number = sampled("stacks", still.pid, "--mode", "wall", "-n", 30)
    assert stacks.keys() == {
        f"[sleeping];{MAIN}",
        f"[sleeping];{NAPPING}",
        f"[sleeping];{WATCHING}",
    }
    assert number == 30
    one_weight(stacks, passes=10)


def test_a_sample_weighs_the_time_since_the_pass_before(still: Target) -> None:
    words = ("stacks", still.pid, "--mode", "wall", "-n", 300, "--format", "json")
    out, err, code = run(*words)
    assert code == 0, err
    found = json.loads(out)
    assert (found["unit"], found["counters"]["samples"]) == ("ns", 300)
    weights = [row["weight"] for row in found["stacks"]]
    assert weights == [weights[0]] * 3
    lasted = found["ended_ns"] - found["started_ns"]
    assert weights[0] == pytest.approx(lasted, rel=0.02)
    assert sum(weights) == found["weight"]


def test_a_terminal_gets_a_summary(still: Target) -> None:
    with closing(Terminal("stacks", still.pid, "--mode", "wall", "-n", 30)) as seen:
        said, code = seen.finish()
    assert (code, "% self  % total  name" in said) == (0, True), said
    assert ";" not in said.partition("% self")[2]
    words = ("stacks", still.pid, "--mode", "wall", "-n", 30, "--format", "folded")
    with closing(Terminal(*words)) as seen:
        said = seen.finish()[0].replace("\r\n", "")
    assert samples(said) == 30
    weights = dict(re.findall(r"(IO#gets|Kernel#sleep|IO\.select) \S+ (\d+)", said))
    assert f";{NAPPING} {weights['Kernel#sleep']}" in said
    assert (len(weights), len(set(weights.values()))) == (3, 1)


def test_threads_are_told_apart(still: Target) -> None:
    words = ("stacks", still.pid, "--mode", "wall", "--threads", "-n", 30)
    stacks, number = sampled(*words)
    assert sorted(re.sub(r", tid \d+", "", stack) for stack in stacks) == [
        f"[main];[sleeping];{MAIN}",
        f"[napping];[sleeping];{NAPPING}",
        f"[watching];[sleeping];{WATCHING}",
    ]
    assert number == 30
    one_weight(stacks, passes=10)
    tids = {int(tid) for tid in re.findall(r"tid (\d+)", "\n".join(stacks))}
    there = {int(task.name) for task in Path(f"/proc/{still.pid}/task").iterdir()}
    assert len(tids) == 3
    assert tids <= there


def test_lines_are_told(still: Target) -> None:
    words = ("stacks", still.pid, "--mode", "wall", "--lines", "-n", 3)
    stacks, number = sampled(*words)
    nap = line("    sleep")
    assert (
        f"[sleeping];block in <main> {SOURCE}:{line('Work.nap }')};"
        f"Work.nap {SOURCE}:{nap};Kernel#sleep {SOURCE}:{nap}"
    ) in stacks
    assert (len(stacks), number) == (3, 3)
    one_weight(stacks, passes=1)


def test_states_of_threads_that_share_the_lock(busy: Target) -> None:
    """One of the two holds the GVL at any moment, and the other waits."""
    words = ("stacks", busy.pid, "--mode", "wall", "-n", 1000, "-r", 500)
    stacks, number = sampled(*words)
    assert number == 1000
    sleepers = (MAIN, NAPPING, WATCHING)
    slept = Counter({one: stacks.pop(f"[sleeping];{one}") for one in sleepers})
    time = one_weight(slept, passes=200, rate=500)
    running = stacks.pop(f"[running];{BURNING}")
    waiting = stacks.pop(f"[waiting];{BURNING}")
    queued = stacks[f"[runnable];{BURNING};(run queue)"]
    # While the GVL changes hands, both run for a moment, or both wait.
    asleep = stacks[f"[sleeping];{BURNING}"]
    assert running + queued + waiting + asleep == pytest.approx(2 * time, rel=0.01)
    assert stacks[f"[sleeping];{BURNING}"] <= time * 0.02
    assert time * 0.75 <= running + queued <= time * 1.25


def test_sleeping_threads_can_be_left_out(busy: Target) -> None:
    out = done("stacks", busy.pid, "--mode", "wall", "--no-idle", "-n", 100)
    queued = f"[runnable];{BURNING};(run queue)"
    burning = {f"[running];{BURNING}", f"[waiting];{BURNING}"}
    assert set(folded(out)) <= {*burning, queued}
    assert f"[running];{BURNING}" in out


@pytest.mark.parametrize("word", ["--gil", "--mode=gvl"])
def test_who_holds_the_lock(busy: Target, word: str) -> None:
    """At any moment, one of the two busy threads holds it."""
    out = done("stacks", busy.pid, word, "-n", 40)
    stacks = {line.partition(";")[2] for line in folded(out)}
    assert stacks == {BURNING}


def test_mode_cpu_is_of_threads_on_a_cpu(busy: Target) -> None:
    # The waiting thread may be on its way to the GVL.
    out, err, code = run("stacks", busy.pid, "-n", 200, "-r", 500)
    assert (set(folded(out)), code) == ({BURNING}, 0)
    found = re.search(r"(\d+) samples", err)
    assert found
    assert 200 <= int(found[1]) <= 280  # -n is checked a few times a second


def test_no_stack_if_no_thread_is_on_a_cpu(still: Target) -> None:
    out, err, code = run("stacks", still.pid, "-d", "0.3")
    assert (out, code) == ("", 0)
    assert "0 samples" in err
    assert "of 99 sampling passes per second" in err


def test_an_interval_shows_what_came_in_it(still: Target) -> None:
    words = ["--mode", "wall", "-i", "0.2", "-d", "0.9", "-r", "100"]
    words += ["--engine", "memory", "--format", "json"]
    out, err, code = run("stacks", still.pid, *words)
    assert code == 0, err
    intervals = [json.loads(one) for one in out.splitlines()]
    assert len(intervals) > 1
    for one in intervals:
        mains = [thread["main"] for thread in one["threads"]]
        rows = [(mains[row["thread"]], row["weight"]) for row in one["stacks"]]
        assert sorted(main for main, _ in rows) == [False, False, True]
        assert len({weight for _, weight in rows}) == 1
        assert sum(weight for _, weight in rows) == one["weight"]
    assert sum(one["counters"]["samples"] for one in intervals) == samples(err)
    assert sum(one["weight"] for one in intervals) == pytest.approx(2.7e9, rel=0.05)


def test_intervals_in_a_file_stand_below_each_other(
    still: Target, tmp_path: Path
) -> None:
    path = tmp_path / "stacks.txt"
    path.write_text("of an earlier run\n")
    words = ["--mode", "wall", "-i", "0.2", "-d", "0.5", "--format", "summary"]
    _, err, code = run("stacks", still.pid, *words, "--title", "now", "-o", path)
    assert code == 0, err
    text = path.read_text()
    assert "of an earlier run" not in text
    assert len(re.findall(r"^now \d\d:\d\d:\d\d$", text, re.M)) > 1
    seen = [int(number) for number in re.findall(r"(\d+) samples? in ", text)]
    assert f"{sum(seen)} samples in" in err


def test_formats_that_are_not_text_write_a_file_per_interval(
    still: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--mode", "wall", "-i", "0.2", "-d", "0.5", "--format", "flamegraph"]
    _, err, code = run("stacks", still.pid, *words)
    assert code == 0, err
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) > 1
    assert [name.split("-")[-1] for name in names[:2]] == ["1.svg", "2.svg"]
    assert sorted(re.findall(r"wrote (.*)", err)) == names
    refused = run("stacks", still.pid, *words, "-o", "one.svg")
    assert refused[1:] == (
        "rbtrace-py: flamegraph needs a file for each interval\n  Leave out -o\n",
        2,
    )


def test_a_duration(still: Target) -> None:
    words = ("--mode", "wall", "-d", "500ms", "-r", 200, "--engine", "memory")
    out, err, _ = run("stacks", still.pid, *words)
    stacks = folded(out)
    assert len(stacks) == 3
    assert one_weight(stacks, passes=1) == pytest.approx(0.5e9, rel=0.1)
    passes = re.search(
        r" samples in 0\.5 s, (\d+\.\d) of 200 sampling passes per second", err
    )
    assert passes
    assert samples(err) == pytest.approx(3 * 0.5 * float(passes[1]), rel=0.05)
    assert samples(err) % 3 == 0


@pytest.mark.parametrize("words", [(), ("-o", "-")])
def test_how_well_it_went_is_said_once(still: Target, words: tuple[str, ...]) -> None:
    """A summary reports the quality of the samples, even if no terminal shows it."""
    words += ("--mode", "wall", "-n", "3", "--format", "summary")
    out, err, code = run("stacks", still.pid, *words)
    assert code == 0
    if "no losses" in out:
        assert (out.count("no losses"), err) == (1, "")
    else:
        (late,) = re.findall(r"[\d,]+ late sampling pass", out)
        assert late in err  # repeated, as `| head` would have cut the first one


def test_a_file_and_nothing_else_is_written(still: Target, tmp_path: Path) -> None:
    path = tmp_path / "stacks.folded"
    words = ["--mode", "wall", "-n", 3, "--silent", "-o", path]
    assert run("stacks", still.pid, *words) == ("", "", 0)
    assert set(folded(path.read_text())) == {
        f"[sleeping];{stack}" for stack in (MAIN, NAPPING, WATCHING)
    }


STARTS: dict[str, bytes] = {
    "folded": b"[sleeping];",
    "flamegraph": b"<svg ",
    "speedscope": b"{",
    "pprof": b"\x1f\x8b",
    "callgrind": b"# callgrind format",
    "summary": b"",
    "summary-by-line": b"",
    "readable": b"",
    "json": b'{"schema": "rbtrace-py/stacks"',
}


@pytest.mark.parametrize("format_", list(STARTS))
@pytest.mark.parametrize("command", ["stacks", "record"])
def test_every_format(
    still: Target, tmp_path: Path, command: str, format_: str
) -> None:
    path = tmp_path / "out"
    words = ["--mode", "wall", "-n", 30, "--format", format_, "-o", path]
    done(command, still.pid, *words)
    data = path.read_bytes()
    if command == "stacks":
        assert data.startswith(STARTS[format_])
    if format_ != "pprof":
        assert b"Work.nap" in data


def test_a_format_for_files_has_a_name_of_its_own(
    still: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--mode", "wall", "-n", 3, "--format", "flamegraph"]
    out, err, code = run("stacks", still.pid, *words)
    (made,) = tmp_path.iterdir()
    assert (out, code) == ("", 0)
    assert f"wrote {made.name}" in err
    assert re.fullmatch(rf"rbtrace-{still.pid}-\d+-\d+\.svg", made.name)


def test_a_recording_is_reported_as_the_stacks_are(
    still: Target, tmp_path: Path
) -> None:
    path = tmp_path / "still.rbrec"
    _, err, code = run("record", still.pid, "-n", 30, "-o", path)
    assert code == 0
    assert f"wrote {path}" in err
    report = ["report", path, "--format", "folded", "--states"]
    stacks = folded(done(*report))
    assert stacks.keys() == {
        f"[sleeping];{stack}" for stack in (MAIN, NAPPING, WATCHING)
    }
    one_weight(stacks, passes=10)
    found = json.loads(done("report", path, "--format", "json"))
    assert found["counters"]["samples"] == samples(err) == 30
    assert found["weight"] == sum(stacks.values())


def test_a_recording_is_appended_to(still: Target, tmp_path: Path) -> None:
    path = tmp_path / "still.rbrec"
    weights = []
    for number in (3, 6):
        done("record", still.pid, "-n", 3, "-o", path, "--append")
        stacks = folded(done("report", path, "--format", "folded"))
        assert len(stacks) == 3
        weights.append(one_weight(stacks, passes=1))
        found = json.loads(done("report", path, "--format", "json"))
        assert found["counters"]["samples"] == number
        assert found["weight"] == sum(stacks.values())
    assert weights[1] > weights[0]
    os.truncate(path, path.stat().st_size - 5)
    for is_cut in (True, False):
        _, err, _ = run("record", still.pid, "-n", 3, "-o", path, "--append")
        assert (f"{path} was cut off" in " ".join(err.split())) is is_cut


def test_a_recording_has_a_name_of_its_own(
    still: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done("record", still.pid, "-n", 3)
    (made,) = tmp_path.iterdir()
    assert re.fullmatch(rf"rbtrace-{still.pid}-\d+-\d+\.rbrec", made.name)


def test_several_processes_at_once(start: Callable[..., Target], root: None) -> None:
    targets = [start("stacks/states.rb", "0") for _ in range(2)]
    pids = ",".join(str(target.pid) for target in targets)
    words = ("stacks", pids, "--mode", "wall", "-n", 60)
    stacks, number = sampled(*words)
    assert (len(stacks), number) == (3, 60)
    assert any(NAPPING in stack for stack in stacks)
    assert one_weight(stacks, passes=10) > 0
    found = json.loads(done(*words, "--format", "json"))
    assert found["counters"]["samples"] == 60
    by_thread = Counter()
    for row in found["stacks"]:
        thread = found["threads"][row["thread"]]
        by_thread[thread["pid"], thread["tid"]] += row["weight"]
    assert Counter(pid for pid, _ in by_thread) == {one.pid: 3 for one in targets}
    assert len(set(by_thread.values())) == 1


def test_a_process_by_its_command_line(
    start: Callable[..., Target], root: None
) -> None:
    mark = f"for-ps-{os.getpid()}"
    start("stacks/states.rb", "0", mark)
    stacks, number = sampled("stacks", "--ps", mark, "--mode", "wall", "-n", 3)
    assert f"[sleeping];{NAPPING}" in stacks
    assert (len(stacks), number) == (3, 3)
    one_weight(stacks, passes=1)


def test_the_same_stacks_while_it_is_paused(busy: Target) -> None:
    out, err, code = run(
        "stacks", busy.pid, "--mode", "wall", "--pause", "-n", 100, "-r", 200
    )
    # A sleeping thread wakes up for a moment after each stop, so its state is
    # uncertain.
    stacks: Counter[str] = Counter()
    for stack, weight in folded(out).items():
        # Pausing a thread takes some microseconds. After that, it waits for a CPU.
        stacks[stack.split(";", 1)[1].removesuffix(";(run queue)")] += weight
    assert code == 0
    assert samples(err) == 100
    burned = stacks.pop(BURNING)
    assert stacks.pop(NOT_SAMPLED, 0) < 10_000_000
    assert stacks.keys() == {MAIN, NAPPING, WATCHING}
    time = 20 / 200 * 1e9
    assert min(stacks.values()) >= 0.95 * time * 19 / 20
    assert burned == pytest.approx(2 * max(stacks.values()), abs=40_000_000)
    assert "the target is paused each time its stacks are read" in err
    assert re.search(r"targets were paused for \d+\.\d ms in total", err)
    assert busy.step("go") == "done"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "0"], "--rate"),
        (["--rate", "1e9"], "--rate"),
        (["--engine", "gdb"], "--engine"),
        (["--mode", "off"], "--mode"),
        (["--format", "none"], "--format"),
        (["probe"], "too many arguments: 'probe'"),
        (["--max-loss", "101"], "--max-loss"),
    ],
)
def test_invalid_options_of_stacks(still: Target, words: list[str], said: str) -> None:
    out, err, code = run("stacks", still.pid, *words)
    assert (out, code) == ("", 2)
    assert said in err


def test_pids_that_are_none() -> None:
    for word, code in (("99999999", 4), ("1,x", 2)):
        out, err, found = run("stacks", word)
        assert (out, found) == ("", code), err
