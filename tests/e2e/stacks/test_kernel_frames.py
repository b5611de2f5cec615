"""The kernel's frames below Ruby's, in programs whose system calls are known."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commands import COMMAND, Tracer, by_names, run
from processes import LIB, ROOT, TARGETS, TIMEOUT, Target, read_line
from rbtrace_py.linux.procfs import read_int
from rbtrace_py.model.stacks import FrameKind, Sample
from rbtrace_py.recording.sample_recording import Recording
from ruby_builds import Build, each_build

EVENTS = str(TARGETS / "stacks/events.rb")
OFF_CPU = str(TARGETS / "stacks/off_cpu.rb")
WALKED = str(TARGETS / "stacks/walked.rb")
ENTRIES = ("entry_", "do_syscall_", "asm_", "ret_from_", "x64_sys_")
"""Prefixes of the kernel's entry functions on x86: for system calls, exceptions, and
interrupts."""
REASON = re.compile(r"\((?!garbage|marking|sweeping|compacting|unresolved).+\)")
TRACE = Callable[..., Tracer]
Names = tuple[str, ...]

pytestmark = pytest.mark.usefixtures("root")


@pytest.fixture
def walked() -> Iterator[Target]:
    with closing(Target("ruby", WALKED)) as target:
        yield target


def sampled(trace: TRACE, target: Target, step: str, *options: object) -> Any:
    """Sample by the kernel during a target's step. Return the JSON document."""
    pid = int(target.ready.split()[1])
    tracer = trace("stacks", pid, "--format", "json", *options)
    answer = target.step(step)
    while answer != "done":
        answer = read_line(target.process.stdout)
    out, err, code = tracer.finish()
    assert code == 0, err
    document = json.loads(out)
    assert (document["engine"], document["lost"]) == ("bpf", 0)
    assert "lack the kernel's frames" not in err
    return document


def split(names: Names) -> tuple[Names, Names]:
    """Split a stack into Ruby's and the kernel's frames, without a reason at its
    end."""
    if names and REASON.fullmatch(names[-1]):
        names = names[:-1]
    of_kernel = [at for at, name in enumerate(names) if name.endswith("_[k]")]
    first = of_kernel[0] if of_kernel else len(names)
    assert of_kernel == list(range(first, len(names))), names
    return names[:first], names[first:]


def of_kernel(document: Any, leaf: str) -> Counter[Names]:
    """Return the weights of the kernel's stacks below a Ruby frame."""
    found: Counter[Names] = Counter()
    for names, weight in by_names(document).items():
        ruby, kernel = split(names)
        if ruby[-1:] == (leaf,):
            found[kernel] += weight
    return found


def is_whole(kernel: Names) -> bool:
    """Return whether the kernel's frames, if any, begin at an entry function."""
    return not kernel or kernel[0].startswith(ENTRIES)


def has(kernel: Names, *words: str) -> bool:
    """Return whether each word is part of some function's name."""
    return all(any(word in name for name in kernel) for word in words)


@each_build
def test_reads(build: Build, trace: TRACE) -> None:
    """The function that clears memory for /dev/zero has several names: ``read_zero``
    alone or with ``clear_user…`` or ``rep_stos…`` in it, or ``read_iter_zero``."""
    options = ("--kernel", "-r", 499)
    with closing(Target(*build.words(), WALKED)) as target:
        found = sampled(trace, target, "zeros 1.0", *options)
    reads = of_kernel(found, "IO#sysread")
    zeroed = sum(n for kernel, n in reads.items() if has(kernel, "zero"))
    assert found["weight"] == pytest.approx(1e9, rel=0.02)
    assert found["counters"]["samples"] in target.ticks(1.0)
    assert zeroed > 0.5 * found["weight"], reads
    # The kernel cannot unwind some assembler functions, and stops there.
    ended = sum(n for kernel, n in reads.items() if not is_whole(kernel))
    assert ended < 0.05 * reads.total(), reads
    # BPF programs of other tracers, at system calls and switches, also run in the
    # target.
    assert not any(has(kernel, "_on_tick") for kernel in reads), reads
    kinds = {frame["kind"] for frame in found["frames"] if "_[k]" in frame["name"]}
    assert kinds == {"kernel"}


def test_without_the_option(walked: Target, trace: TRACE) -> None:
    found = sampled(trace, walked, "zeros 0.5", "--engine", "bpf")
    assert "IO#sysread" in {frame["name"] for frame in found["frames"]}
    assert "kernel" not in {frame["kind"] for frame in found["frames"]}
    assert "_[k]" not in str(found)


def test_none_in_user_space(walked: Target, trace: TRACE) -> None:
    found = sampled(trace, walked, "spins 30_000_000", "--kernel", "-r", 499)
    outside = Counter(
        {one: n for one, n in by_names(found).items() if not split(one)[1]}
    )
    assert found["counters"]["samples"] > 50
    # If other programs want the CPU, some samples are taken as the thread gets it back.
    assert outside.total() > 0.6 * found["weight"], found


@pytest.mark.parametrize("mode", ["offcpu", "wall"])
def test_waits(mode: str, trace: TRACE) -> None:
    """The functions between the system call's entry and the scheduler differ between
    kernels: ``do_nanosleep``, ``do_sys_poll``, ``futex_wait_queue`` …"""
    reasons = {
        "Waits#wait_sleep": "(sleep)",
        "Waits#wait_lock": "(lock)",
        "Waits#wait_queue": "(queue)",
        "Waits#wait_socket": "(socket)",
        "Waits#wait_pipe": "(pipe)",
        "Waits#wait_child": "(child process)",
    }
    with closing(Target("ruby", OFF_CPU)) as target:
        found = sampled(trace, target, "waits 0.6", "--kernel", "--mode", mode)
    waited: Counter[str] = Counter()
    for names, weight in by_names(found).items():
        method = next((name for name in names if name in reasons), "")
        if names[-1:] == (reasons.get(method),):
            _, kernel = split(names)
            assert is_whole(kernel), names
            assert "schedule" in kernel[-1], names
            assert not has(kernel, "bpf_"), names
            assert has(kernel, "sys"), names
            waited[method] += weight
    assert waited.keys() == reasons.keys()
    assert all(weight > 0.3e9 for weight in waited.values()), waited


def test_a_thread_that_slept_before(trace: TRACE) -> None:
    """It is read differently, because the scheduler reports no event for it."""
    script = "$stdout.sync = true; Thread.new { sleep }; puts 'ready 0'; gets"
    with closing(Target("ruby", "-e", script)) as target:
        tracer = trace(
            *("stacks", target.pid, "--format", "json"),
            *("--kernel", "--mode", "offcpu"),
        )
        out, err, code = tracer.finish()
    assert code == 0, err
    sleeps = of_kernel(json.loads(out), "Kernel#sleep")
    assert len(sleeps) == 1
    (kernel,) = sleeps
    assert is_whole(kernel)
    assert has(kernel, "futex") or has(kernel, "poll")
    assert not has(kernel, "__schedule")


def test_events(trace: TRACE) -> None:
    """A system call's tracepoint has kernel frames. A uprobe has none, because the
    thread is in user space."""
    with closing(Target("ruby", f"-I{LIB}", EVENTS)) as target:
        options = ("--kernel", "--on", "syscall:getppid")
        in_kernel = sampled(trace, target, "parent 1000", *options)
        options = ("--kernel", "--on", "uprobe:libc.so.6:getppid")
        in_user_space = sampled(trace, target, "parent 1000", *options)
        options = ("--kernel", "--on", "tracepoint:signal:signal_generate")
        signals = sampled(trace, target, "signal 100", *options)
    (kernel,) = of_kernel(in_kernel, "Process.ppid")
    assert of_kernel(in_kernel, "Process.ppid").total() == 1000
    assert "do_syscall_64_[k]" in kernel
    assert not any(has(kernel, word) for word in ("bpf_", "perf_", "trace"))
    assert of_kernel(in_user_space, "Process.ppid") == {(): 1000}
    sent = of_kernel(signals, "Process.kill")
    assert sent.total() == 100
    assert all(map(is_whole, sent))
    assert all(has(kernel, "sys_kill") and has(kernel, "send") for kernel in sent)


def test_a_recording(walked: Target, trace: TRACE, tmp_path: Path) -> None:
    file = tmp_path / "zeros.rbrec"
    tracer = trace("record", walked.pid, "--kernel", "-o", file)
    assert walked.step("zeros 0.5") == "done"
    _, err, code = tracer.finish()
    assert code == 0, err
    recording = Recording(str(file))
    samples: list[Sample] = list(recording)
    assert (recording.meta.mode, recording.meta.engine) == ("wall", "bpf")
    kinds = {frame.kind for one in samples for frame in one.stack.frames}
    assert kinds >= {FrameKind.RUBY, FrameKind.C, FrameKind.KERNEL, FrameKind.MARKER}
    out, _, code = run("report", file, "--format", "folded", "--state", "running")
    assert code == 0
    assert f"IO#sysread {WALKED};entry_SYSCALL_64_after_hwframe_[k];do_sys" in out


def test_only_the_kernel_engine_has_them(walked: Target) -> None:
    limit = ("--duration", "0.1")
    for words in (("--engine", "memory"), ("--pause",), ("--calls",)):
        out, err, code = run("stacks", walked.pid, "--kernel", *words, *limit)
        assert (out, code) == ("", 2), err
        assert "--kernel" in err
        assert "cannot be combined" in err
    _, err, _ = run("top", walked.pid, "--kernel", "--engine", "memory", *limit)
    assert "--kernel needs the BPF engine" in err


@pytest.mark.skipif(
    (read_int("/proc/sys/kernel/perf_event_paranoid") or 0) < 2,
    reason="this kernel shows its addresses to everybody",
)
def test_names_that_the_kernel_hides(walked: Target) -> None:
    done = subprocess.run(
        [
            *("setpriv", "--bounding-set=-syslog", *COMMAND),
            *("stacks", str(walked.pid), "--kernel", "--duration", "0.1"),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tracer")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert (done.stdout, done.returncode) == ("", 3)
    error = " ".join(done.stderr.split())
    assert "kernel functions: their addresses are hidden" in error
    assert "kernel.kptr_restrict" in done.stderr
