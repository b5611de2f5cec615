"""The target stays unchanged, however the tracer ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from commands import answer, by_key, if_ruby_has, run
from processes import times
from rbtrace_py.linux.probes import StateReader, find_probes
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.processes import descendants

pytestmark = pytest.mark.alone


def states(pid, pattern=""):
    """Return the names of the traced probes, and of those with a raised semaphore."""
    process = Process(pid)
    traced, raised = [], []
    with StateReader(process) as reader:
        for probe in find_probes(process):
            if pattern in probe.full_name:
                state = reader.state(probe)
                if state.traced:
                    traced.append(probe.full_name)
                if state.semaphore:
                    raised.append(probe.full_name)
    return traced, raised


def sleep_at_random(chance, longest):
    """Sleep until a random moment of the tracer's life."""
    time.sleep(chance.uniform(0, longest))


def test_kill_9_leaves_nothing_behind(start, trace):
    target = start("probes/busy.rb")
    chance = random.Random(20)
    own = if_ruby_has("object__create", "gc*")
    words = ["count", target.pid, "busy:*", *own, "--by", "pid"]
    for _ in range(times(200)):
        tracer = trace(*words)
        assert tracer.attached
        sleep_at_random(chance, 0.02)
        tracer.process.send_signal(signal.SIGKILL)
        tracer.process.wait(60)
        answer_line = target.step().split()
        assert answer_line[2] == "false", "a probe still reads as traced"
        assert states(target.pid) == ([], [])
    tracer = trace("count", target.pid, "busy:event", "--json")
    before = int(target.step().split()[1])
    after = before
    while after < before + 1000:
        after = int(target.step().split()[1])
    document = answer(tracer)
    assert sum(by_key(document).values()) >= 1000


def test_kill_9_while_it_starts(start, trace):
    """The kill may come before or during the attachment."""
    target = start("probes/busy.rb")
    chance = random.Random(21)
    for _ in range(times(200)):
        tracer = trace("count", target.pid, "*:*", waits=False)
        sleep_at_random(chance, 0.4)
        tracer.process.kill()
        tracer.process.wait(60)
        if not has_leaked(tracer.process.pid):
            assert target.step().split()[2] == "false"
        put_right(target, trace, tracer)


def test_kill_9_while_the_kernel_attaches(start, trace):
    """The next tracer of the same probes removes the kernel's leftovers."""
    target = start("probes/busy.rb")
    for _ in range(times(200)):
        tracer = trace("count", target.pid, "*:*", waits=False)
        until_it_attaches(tracer.process.pid)
        tracer.process.kill()
        tracer.process.wait(60)
        put_right(target, trace, tracer)
    assert target.step().split()[2] == "false"


def until_it_attaches(pid):
    """Wait until the tracer is in bpf(BPF_LINK_CREATE), which takes a millisecond,
    or past it."""
    call = os.open(f"/proc/{pid}/syscall", os.O_RDONLY)
    try:
        for _ in range(1_000_000):
            if any(os.pread(call, 10, 0) == b"321 0x1c 0" for _ in range(200)):
                return
            if "anon_inode:bpf_link" in links(pid):
                return
    finally:
        os.close(call)


def links(pid):
    """Yield the link targets of its descriptors."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(path.readlink())


def put_right(target, trace, killed):
    """Check that nothing of it remains, except leaks that the kernel reports. These
    last until the next tracer ends."""
    if has_leaked(killed.process.pid):
        trace("count", target.pid, "*:*").finish()
    assert states(target.pid) == ([], [])


def has_leaked(pid):
    """Return whether Linux left breakpoints of a tracer that was killed while
    attaching.

    Linux cannot remove them, because a process with a pending kill gets no page of
    another process's memory (mm/gup.c). kernel/events/uprobes.c then gives up and logs
    it.
    """
    said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return f":{pid} failed to unregister, leaking uprobe" in said


def test_a_fork_under_a_tracer_that_dies(start, trace):
    """A fork copies semaphores. The child's semaphores are lowered, too."""
    target = start("probes/preforking.rb", "--late")
    own = if_ruby_has("gc*", "object__create")
    tracer = trace("count", target.pid, "fork:*", *own)
    target.step("fork")
    tracer.process.kill()
    tracer.process.wait(60)
    target.step()
    family = [target.pid, *descendants(target.pid)]
    assert len(family) == 2
    for pid in family:
        assert states(pid) == ([], [])


def test_probes_defined_while_another_is_traced(start, trace):
    """Each is listed at once and traced next, and nothing crashes."""
    target = start("probes/late.rb")
    tracer = trace("count", target.pid, "late:first", "--json")
    rounds = times(2000)
    for number in range(rounds):
        assert target.step(f"define p{number}") == "done"
    names = {probe.name for probe in find_probes(Process(target.pid))}
    assert {f"p{number}" for number in range(rounds)} <= names
    for number in range(0, rounds, max(1, rounds // 20)):
        second = trace("count", target.pid, f"late:p{number}", "--json")
        assert target.step(f"fire p{number} 3") == "done 3"
        assert target.step("fire first 2") == "done 2"
        assert by_key(answer(second)) == {None: 3}
    assert target.step("enabled").count("true") == 1
    first = by_key(answer(tracer))
    assert first == {None: 2 * len(range(0, rounds, max(1, rounds // 20)))}
    assert "true" not in target.step("enabled")


def test_a_glob_takes_in_what_is_defined_later(start, trace):
    target = start("probes/late.rb")
    tracer = trace("count", target.pid, "late:*", "--json")
    target.step("define second")
    traced = ""
    while not traced.startswith("done [true, true"):
        traced = target.step("enabled")
    target.step("fire second 5")
    document = answer(tracer)
    counts = {group["series"]: group["count"] for group in document["groups"]}
    assert counts["late:second"] == 5
    assert document["counters"]["late_probes"] == 1


def test_wait_for_a_probe_that_is_not_there_yet(start, trace):
    target = start("probes/late.rb")
    out, err, code = run("count", target.pid, "later")
    assert (out, code) == ("", 4)
    assert "no probe matches later" in err
    words = ["later", "--wait", "--count", "1", "--json"]
    tracer = trace("count", target.pid, *words, waits=False)
    target.step("define later")
    while tracer.process.poll() is None:
        target.step("fire later")
    out, err, code = tracer.result()
    assert json.loads(out)["count"] >= 1


@pytest.mark.parametrize("children_first", [True, False])
def test_preforking_family(start, trace, children_first):
    """A parent and 3 children, with probes from before and after the fork, are all
    counted."""
    target = start("probes/preforking.rb", *([] if children_first else ["--late"]))
    words = ["fork:*", "--by", "who", "--subprocesses", "--json"]
    tracer = trace("count", target.pid, *words)
    if not children_first:
        for _ in range(3):
            target.step("fork")
    target.step()
    groups = answer(tracer)["groups"]
    counts = {(group["series"], group["key"]): group["count"] for group in groups}
    expected = {("fork:before", who): 10 for who in (0, 1, 2, 99)}
    expected["fork:parent_after", 99] = 10
    if children_first:
        expected.update({("fork:child_after", who): 10 for who in (0, 1, 2)})
        expected["fork:own", 0] = 10
    assert {key: counts.get(key) for key in expected} == expected


def test_several_pids_at_once(start, trace):
    targets = [start("probes/late.rb") for _ in range(3)]
    pids = ",".join(str(target.pid) for target in targets[:2])
    tracer = trace("count", pids, "late:first", "--by", "pid", "--json")
    for number, target in enumerate(targets):
        target.step(f"fire first {number + 1}")
    assert by_key(answer(tracer)) == {targets[0].pid: 1, targets[1].pid: 2}


def test_the_target_ends_while_it_is_traced(start, trace):
    target = start("probes/late.rb")
    tracer = trace("count", target.pid, "late:first", "--json")
    target.step("fire first 7")
    target.process.stdin.close()
    out, err, code = tracer.result()
    assert code == 0, err
    assert by_key(json.loads(out)) == {None: 7}


def test_sigterm_ends_it_with_the_result(start, trace):
    target = start("probes/late.rb")
    tracer = trace("count", target.pid, "late:first", "--json")
    target.step("fire first 3")
    out, _, code = tracer.finish(signal.SIGTERM)
    assert (by_key(json.loads(out)), code) == ({None: 3}, 0)
