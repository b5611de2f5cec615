"""Targets that end, change, or contain garbage while they are read: a result or an
error."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands import run
from processes import MAIN, ROOT, TARGETS, TIMEOUT, Target, times
from public_copy import PublicCopy
from rbtrace_py.linux.process import Process
from rbtrace_py.rubyvm.attach import attach

pytestmark = pytest.mark.usefixtures("root")

ENV = {**os.environ, "PYTHONPATH": str(ROOT / "tracer")}
TEXTS = ("folded", "summary", "summary-by-line", "readable", "callgrind", "flamegraph")


@contextmanager
def target(*command: str) -> Iterator[Target]:
    started = Target(*command)
    try:
        yield started
    finally:
        started.close()


def ruby(name: str, *words: str) -> list[str]:
    return ["ruby", str(TARGETS / name), *words]


def own(*words: object) -> list[str]:
    return [sys.executable, "-c", MAIN, *map(str, words)]


def is_clear(err: str) -> bool:
    return "Traceback" not in err and all(one.isprintable() for one in err.split("\n"))


# ---------------------------------------------------------------------- names


def test_bad_names_in_a_dump() -> None:
    with target(*ruby("probes/bad_names.rb")) as bad:
        out, err, code = run("dump", bad.pid)
        assert (err, code) == ("", 0)
        assert all(line.isprintable() for line in out.split("\n"))
        assert "evil\\u202emethod" in out
        document = json.loads(run("dump", bad.pid, "--json")[0])
        thread = document["processes"][0]["threads"][1]
        assert thread["name"].isprintable()
        assert all(frame["path"].isprintable() for frame in thread["frames"])


@pytest.mark.parametrize("name", TEXTS)
def test_bad_names_in_a_report(name: str) -> None:
    with target(*ruby("probes/bad_names.rb")) as bad:
        words: tuple[object, ...]
        words = ("--mode", "wall", "--count", 20, "--silent", "-o", "-")
        if not name.startswith("summary"):
            words += ("--threads",)
        out, err, code = run("stacks", bad.pid, *words, "--format", name)
    assert (err, code) == ("", 0)
    assert "evil\\u202emethod" in out
    assert all(line.replace("\t", "").isprintable() for line in out.split("\n"))
    if name == "folded":
        assert all(re.fullmatch(r".+ \d+", line) for line in out.splitlines())
        assert len({line.count(";") for line in out.splitlines()}) == 2


def test_bad_names_in_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "bad"
    with target(*ruby("probes/bad_names.rb")) as bad:
        words = ("--mode", "wall", "--count", 20, "--silent", "-o", file)
        assert run("record", bad.pid, *words)[1:] == ("", 0)
    out, err, code = run("report", file, "--format", "folded")
    assert (err, code) == ("", 0)
    assert out.isprintable() or all(line.isprintable() for line in out.split("\n"))


# ---------------------------------------------------------------------- depth


def test_as_deep_as_a_stack_can_be() -> None:
    with target(*ruby("stacks/deep.rb")) as deep:
        depth = int(deep.ready.split()[1])
        (thread,) = json.loads(run("dump", deep.pid, "--json")[0])["processes"][0][
            "threads"
        ]
    names = [frame["name"] for frame in thread["frames"]]
    assert depth > 5000
    assert names.count("Object#wait") == depth + 1
    assert not thread["truncated"]


def test_a_stack_as_large_as_somebody_likes() -> None:
    words = (
        "env",
        f"RUBY_THREAD_VM_STACK_SIZE={400 << 20}",
        *ruby("stacks/standing.rb"),
    )
    with target(*words) as standing:
        out, err, code = run("dump", standing.pid)
    assert (err, code) == ("", 0)
    assert "Shop#serve" in out


def test_a_hint_if_no_thread_was_on_a_cpu() -> None:
    with target(*ruby("stacks/standing.rb")) as standing:
        out, err, code = run("stacks", standing.pid, "-d", "0.2")
        assert (out, code) == ("", 0)
        assert "no thread was on CPU; --mode wall shows" in err
        assert (
            "no thread" not in run("stacks", standing.pid, "-d", "0.2", "--silent")[1]
        )


# --------------------------------------------------------------------- endings


@pytest.mark.parametrize("seed", range(times(300)))
def test_ends_at_any_moment(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    what = chance.choice(("exit", "exec", "fork", "kill"))
    command = chance.choice(
        (["dump"], ["dump", "--fibers"], ["stacks", "-d", "1"], ["record", "-d", "1"])
    )
    if command[0] == "record":
        command += ["-o", str(tmp_path / "recording")]
    with target(
        *ruby("stacks/unsteady.rb", what, str(chance.randrange(600)))
    ) as unsteady:
        out, err, code = run(command[0], unsteady.pid, *command[1:])
    assert is_clear(err)
    assert code in (0, 1, 4, 5), (what, command, out, err)
    assert code == 0 or err.startswith("rbtrace-py: ")


def test_a_storm_of_threads() -> None:
    with target(*ruby("stacks/unsteady.rb", "storm", "0")) as storm:
        for _ in range(times(60)):
            out, err, code = run("dump", storm.pid)
            assert (err, code) == ("", 0)
            assert '"main" tid' in out
        words = ("--mode", "wall", "-d", "1", "--max-loss", "100")
        out, err, code = run("stacks", storm.pid, *words)
        assert code == 0
        assert is_clear(err)
        assert "block in <main>" in out


# ------------------------------------------------------------------------- lies


@pytest.fixture(scope="module")
def false_ruby(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("false") / "ruby"
    source = TARGETS / "stacks/false_ruby.c"
    subprocess.run(["gcc", "-O1", "-rdynamic", "-o", built, source], check=True)
    return str(built)


@pytest.mark.parametrize("command", ["dump", "stacks", "record", "layout"])
def test_a_false_ruby(command: str, false_ruby: str, tmp_path: Path) -> None:
    more = {"stacks": ("-d", "1"), "record": ("-d", "1", "-o", tmp_path / "recording")}
    with target(false_ruby) as false:
        _, err, code = run(command, false.pid, *more.get(command, ()))
    assert code in (1, 4)
    assert is_clear(err)


class Scribbler:
    """A writer of random words into the structures of a stopped Ruby's VM, all the
    time."""

    def __init__(self, pid: int, places: list[tuple[int, int]], seed: int) -> None:
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDWR)
        self._places = places
        self._chance = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Scribbler:
        self._thread.start()
        return self

    def _run(self) -> None:
        chance = self._chance
        while not self._stop.wait(0.0005):
            start, size = chance.choice(self._places)
            place = start + 8 * chance.randrange(size // 8)
            other = 8 * chance.randrange(size // 8) + chance.choice(self._places)[0]
            word = chance.choice((0, 1 << 40, chance.getrandbits(64), other))
            before = os.pread(self._file, 8, place)
            os.pwrite(self._file, word.to_bytes(8, "little"), place)
            if chance.random() < 0.9:
                os.pwrite(self._file, before, place)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._file)


@pytest.mark.parametrize("seed", range(times(100)))
def test_a_vm_that_is_rewritten_while_it_is_read(seed: int) -> None:
    """The target is stopped, so that it does not crash on the garbage itself."""
    with (
        target(*ruby("stacks/standing.rb")) as standing,
        Process(standing.pid) as process,
    ):
        found = attach(process)
        layout, read = found.layout.offsets, os.open(f"/proc/{process.pid}/mem", 0)

        def word(address: int) -> int:
            return int.from_bytes(os.pread(read, 8, address), "little")

        assert layout.vm_main_thread is not None
        assert layout.th_ec is not None
        thread = word(found.vm_address + layout.vm_main_thread)
        ec = word(thread + layout.th_ec)
        stack, size = (
            word(ec + layout.ec_vm_stack),
            8 * word(ec + layout.ec_vm_stack_size),
        )
        os.close(read)
        places = [(thread, 512), (ec, 256), (stack, 1024), (stack + size - 1024, 1024)]
        os.kill(process.pid, signal.SIGSTOP)
        with Scribbler(process.pid, places, seed):
            for words in (["dump"], ["dump", "--fibers"], ["stacks", "-d", "1"]):
                _, err, code = run(words[0], process.pid, *words[1:])
                assert is_clear(err)
                # 4: Ruby may seem to be still starting.
                assert code in (0, 1, 4, 5), err


# ----------------------------------------------------------------- surroundings


def test_another_users_process(public_copy: PublicCopy) -> None:
    with target(*ruby("stacks/standing.rb")) as standing:
        for command in ("dump", "stacks", "record", "layout"):
            words = ["setpriv", "--reuid=65534", "--clear-groups"]
            words += public_copy.command(command, standing.pid)
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                env=public_copy.env,
                timeout=TIMEOUT,
                cwd="/tmp",
            )
            assert done.returncode == 3, done.stderr
            assert "user root" in done.stderr
            assert is_clear(done.stderr)


@pytest.mark.parametrize("most", [4, 8, 12, 16])
def test_few_descriptors(most: int) -> None:
    with target(*ruby("stacks/standing.rb")) as standing:
        words = ["prlimit", f"--nofile={most}", *own("dump", standing.pid)]
        done = subprocess.run(
            words, capture_output=True, text=True, env=ENV, timeout=TIMEOUT
        )
    if done.returncode:
        assert done.returncode == 1
        assert most < 16
    assert is_clear(done.stderr) or most < 8  # Python itself does not start


@pytest.mark.parametrize("command", ["record", "stacks", "dump"])
def test_a_full_disk(command: str) -> None:
    words = {
        "record": ("-d", "1", "-o", "/dev/full"),
        "stacks": ("--mode", "wall", "-n", "20", "-o", "/dev/full"),
        "dump": (),
    }[command]
    with (
        target(*ruby("stacks/standing.rb")) as standing,
        Path("/dev/full").open("w") as full,
    ):
        done = subprocess.run(
            own(command, standing.pid, *words),
            stdout=full if command == "dump" else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENV,
            timeout=TIMEOUT,
        )
    assert done.returncode == 1, done.stderr
    assert "No space left" in done.stderr
    assert is_clear(done.stderr)


def test_a_binary_that_was_deleted(tmp_path: Path) -> None:
    copy = tmp_path / "ruby"
    shutil.copy(Path(shutil.which("ruby") or "").resolve(), copy)
    with target(str(copy), str(TARGETS / "stacks/standing.rb")) as standing:
        copy.unlink()
        out, err, code = run("dump", standing.pid)
    assert (err, code) == ("", 0)
    assert "Shop#serve" in out


def test_another_pid_namespace() -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with target(*words, *ruby("stacks/standing.rb")) as standing:
        children = Path(f"/proc/{standing.pid}/task/{standing.pid}/children")
        pid = int(children.read_text().split()[0])
        process = json.loads(run("dump", pid, "--json")[0])["processes"][0]
        tids = set(map(int, os.listdir(f"/proc/{pid}/task")))
    assert {thread["tid"] for thread in process["threads"]} <= tids
    assert process["threads"][0]["tid"] == pid
