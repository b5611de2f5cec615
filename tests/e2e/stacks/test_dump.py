"""``dump`` of Rubies that are paused at known places, and of core files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rubies
from commands import run
from processes import ROOT, TARGETS, Target, await_state, comes_true
from public_copy import PublicCopy
from rbtrace_py.linux.process import Process
from rbtrace_py.session.stacks import dump as module

SOURCE = TARGETS / "stacks/standing.rb"
CORES = ROOT.parent / "shared" / "coredumps"
needs_cores = pytest.mark.skipif(
    not CORES.is_dir(), reason="no core files of other Rubies beside this checkout"
)


def line(text: str) -> int:
    """Return the number of the only line of the program that contains ``text``."""
    lines = SOURCE.read_text().split("\n")
    found = [number for number, one in enumerate(lines, 1) if text in one]
    assert len(found) == 1, text
    return found[0]


class Standing(Target):
    """standing.rb in a Ruby. It reports its pid itself, as a script may start it."""

    def __init__(self, ruby: str, *arguments: str) -> None:
        super().__init__(*rubies.ruby(ruby), str(SOURCE), *arguments)
        await_state(self.pid, "S")  # it waits for its input

    @property
    def pid(self) -> int:
        return int(self.ready.split()[1])


@pytest.fixture(params=rubies.EACH)
def standing(request: pytest.FixtureRequest, root: None) -> Iterator[Standing]:
    target = Standing(request.param)
    yield target
    target.close()


@pytest.fixture
def here(root: None) -> Iterator[Standing]:
    target = Standing(rubies.HERE)
    yield target
    target.close()


def dumped(*words: object) -> Any:
    """Return the only process of a dump as JSON."""
    out, err, code = run("dump", *words, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["schema"], document["version"]) == ("rbtrace-py/dump", 1)
    (process,) = document["processes"]
    return process


def frames(stack: Any) -> list[tuple[str, int | None]]:
    """Return names and lines, after checking that all are in the program."""
    assert {frame["path"] for frame in stack["frames"]} == {str(SOURCE)}
    return [(frame["name"], frame["line"]) for frame in stack["frames"]]


WORKER = [
    ("Kernel#sleep", line("# in wait")),
    ("Shop.wait", line("# in wait")),
    ("block in Shop.start", line("wait(item)")),
    ("Shop#serve", line("    yield 1")),
    ("Shop.start", line("wait(item)")),
    ("block in <main>", line("worker = Thread.new")),
]
DEEP = line("count.zero?")
HOLDER = [
    ("Kernel#sleep", DEEP),
    *[("Object#deep", DEEP)] * 4,
    ("block in <main>", line("  deep(3)")),
]


def producing(where: str) -> list[tuple[str, int | None]]:
    name = "block in <main>" if where == "fiber = " else "block (2 levels) in <main>"
    return [
        ("Fiber.yield", line("# in produce")),
        ("Object#produce", line("# in produce")),
        (name, line(f"{where}Fiber.new {{")),
    ]


def check_threads(process: Any) -> None:
    main, worker, holder = process["threads"]
    assert process["failed"] == 0
    assert main["main"]
    assert frames(main) == [
        ("IO#gets", line("# in main")),
        ("<main>", line("# in main")),
    ]
    assert (worker["name"], frames(worker)) == ("worker", WORKER)
    assert (holder["name"], frames(holder)) == ("holder \\x1b[31m", HOLDER)
    for thread in process["threads"]:
        assert thread["state"] == "sleeping"
        assert not thread["trimmed"]
        assert not thread["truncated"]
    kinds = [frame["kind"] for frame in worker["frames"]]
    assert kinds == ["c", *["ruby"] * 5]


def test_all_threads(standing: Standing) -> None:
    process = dumped(standing.pid)
    check_threads(process)
    assert process["pid"] == standing.pid
    assert process["stopped_ns"] is None
    tids = {int(tid) for tid in os.listdir(f"/proc/{standing.pid}/task")}
    found = [thread["tid"] for thread in process["threads"]]
    assert found[0] == standing.pid
    assert len(set(found)) == 3
    assert set(found) <= tids
    assert [thread["on_cpu"] for thread in process["threads"]] == [False] * 3
    assert [thread["kernel_state"] for thread in process["threads"]] == ["S"] * 3
    assert [thread["fibers"] for thread in process["threads"]] == [[]] * 3


def test_suspended_fibers(standing: Standing) -> None:
    process = dumped(standing.pid, "--fibers")
    check_threads(process)
    main, worker, holder = process["threads"]
    assert [frames(fiber) for fiber in main["fibers"]] == [producing("fiber = ")]
    assert worker["fibers"] == []
    assert [frames(fiber) for fiber in holder["fibers"]] == [producing("inner = ")]
    assert holder["fibers"][0]["address"] != holder["fiber"]


def test_pause(standing: Standing) -> None:
    process = dumped(standing.pid, "--pause", "--fibers")
    check_threads(process)
    assert 0 < process["stopped_ns"] < 5_000_000_000
    status = Path(f"/proc/{standing.pid}/status").read_text()
    assert "TracerPid:\t0\n" in status
    assert process["threads"][0]["kernel_state"] is None


def test_text(here: Standing) -> None:
    out, err, code = run("dump", here.pid, "--fibers")
    assert (err, code) == ("", 0)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", out)
    text = re.sub(r"tid \d+", "tid N", text)
    text = re.sub(r"0x[0-9a-f]+", "0x0", re.sub(r"\[\d+\]", "[N]", text))
    text = text.replace(str(SOURCE), "P").replace(os.path.relpath(SOURCE), "P")
    text = re.sub(r"other end: process .*\)", "other end: process N", text)
    assert all(len(one) <= 80 for one in text.split("\n"))
    yielded, produced = line("# in produce"), line("fiber = Fiber.new")
    assert (
        f"""
TIME, 3 threads

"main" tid N, sleeping
  waits for: read of fd 0 (pipe:[N]); its other end: process N
    IO#gets  P:{line("# in main")} (C)
    <main>  P:{line("# in main")}
  suspended fiber 0x0
    Fiber.yield  P:{yielded} (C)
    Object#produce  P:{yielded}
    block in <main>  P:{produced}
"""
        in text
    )
    assert '"holder \\x1b[31m" tid N, sleeping\n' in text
    assert "\x1b" not in out
    first = out.split("\n")[0]
    assert first.startswith("Ruby ")
    assert f"process {here.pid}: ruby" in first


def test_without_lines_into_a_file(here: Standing, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    out, err, code = run("dump", here.pid, "--no-lines", "-o", path)
    assert (out, err, code) == ("", "", 0)
    assert "stacks/standing.rb" in path.read_text()
    assert not re.search(r"standing\.rb:\d", path.read_text())


def test_a_stopped_one(here: Standing) -> None:
    os.kill(here.pid, signal.SIGSTOP)
    os.waitpid(here.pid, os.WUNTRACED)
    process = dumped(here.pid)
    assert [thread["kernel_state"] for thread in process["threads"]] == ["T"] * 3
    check_threads(process)
    out, _, _ = run("dump", here.pid, "--pause")
    assert len(re.findall(r"tid \d+, sleeping", out)) == 3
    out, _, _ = run("dump", here.pid)
    assert len(re.findall(r"tid \d+, stopped", out)) == 3
    os.kill(here.pid, signal.SIGCONT)


def test_several(here: Standing) -> None:
    other = Standing(rubies.HERE, "2")
    try:
        out, err, code = run("dump", f"{here.pid},{other.pid}", "--json")
        assert code == 0, err
        processes = json.loads(out)["processes"]
        assert [p["pid"] for p in processes] == [here.pid, other.pid]
        assert [len(p["threads"]) for p in processes] == [3, 5]
        deep = [("Kernel#sleep", DEEP), *[("Object#deep", DEEP)] * 21]
        assert frames(processes[1]["threads"][4])[:-1] == deep
    finally:
        other.close()


def test_children(root: None) -> None:
    """Non-Ruby children are reported and skipped."""
    code = (
        "r, w = IO.pipe; fork { w.puts 1; sleep }; r.gets; spawn('sleep', '1000');"
        " puts 'ready'; $stdout.flush; gets"
    )
    target = Target("ruby", "-e", code)
    try:
        out, err, status = run("dump", target.pid, "--subprocesses", "--json")
        assert status == 0, err
        processes = json.loads(out)["processes"]
        assert len(processes) == 2
        assert processes[0]["pid"] == target.pid
        assert [one["threads"][0]["tid"] for one in processes] == [
            one["pid"] for one in processes
        ]
        assert "does not run Ruby" in err
    finally:
        target.close()


def test_by_its_command_line(root: None) -> None:
    target = Target("ruby", "-e", "puts 'ready'; $stdout.flush; gets # by-its-name-93")
    try:
        assert dumped("--ps", "by-its-name-9[3]")["pid"] == target.pid
    finally:
        target.close()


def test_a_hundred_threads(root: None) -> None:
    """The CPU time excludes start-up, as the machine may be busy. It was 50 ms."""
    from rbtrace_py.report.style import PLAIN
    from rbtrace_py.report.terminal.dump import dump_lines

    target = Standing(rubies.HERE, "98")
    try:
        with Process(target.pid) as process:
            times = []
            for _ in range(5):
                began = time.process_time()
                found = module.dump(process)
                assert len(list(dump_lines(found, PLAIN, idle=True))) > 2000
                times.append(time.process_time() - began)
        assert len(found.threads) == 101
        assert found.failed == 0
        assert min(times) < 0.15
    finally:
        target.close()


# --------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["4194305"], 4, "no process 4194305"),
        (["0"], 4, "no process 0"),
        ([], 2, "missing target"),
        (["--", "ruby", "-e", "1"], 2, "not on a command"),
        (["/nowhere/core"], 1, "No such file"),
        (["abc"], 1, "Give the PID of a process, or the path of a core file"),
        (["/etc/passwd"], 1, "not an ELF file"),
        (["/bin/sh"], 1, "not a core file"),
        (["/etc/passwd", "--pause"], 2, "do not apply to core files"),
        (["/etc/passwd", "--symbol", "x=1"], 2, "unknown symbol"),
        (["/etc/passwd", "--symbol", "ruby_current_vm=z"], 2, "is not an address"),
    ],
)
def test_invalid_arguments_of_dump(
    root: None, words: list[str], code: int, text: str
) -> None:
    out, err, status = run("dump", *words)
    assert text in err.replace("\n", " ")
    assert (out, status) == ("", code)


def test_options_of_cores(here: Standing) -> None:
    _, err, code = run("dump", here.pid, "--symbol", "ruby_current_vm=1")
    assert code == 2
    assert "to core files" in err


def test_a_word_too_many(here: Standing) -> None:
    _, err, code = run("dump", here.pid, "Shop#serve")
    assert code == 2
    assert "too many arguments" in err


def test_no_ruby(root: None) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            _, err, code = run("dump", other.pid)
        finally:
            other.kill()
    assert code == 4
    assert "does not run Ruby" in err


def test_one_that_ended(root: None) -> None:
    other = subprocess.Popen(["true"])
    other.wait()
    _, err, code = run("dump", other.pid)
    assert code == 4
    assert "no process" in err


def test_a_process_of_another_user(here: Standing, public_copy: PublicCopy) -> None:
    assert_not_permitted(public_copy, here.pid)


def test_several_of_another_user(
    root: None, start: Callable[..., Target], public_copy: PublicCopy
) -> None:
    """Other users' processes cannot be identified as Ruby, so a narrower REGEX is not
    suggested."""
    marker = f"marker-{uuid.uuid4().hex}"
    for _ in range(2):
        start("stacks/turning.rb", "0", marker)
    assert_not_permitted(public_copy, "--ps", marker)


def assert_not_permitted(public_copy: PublicCopy, *words: object) -> None:
    def drop() -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)

    done = subprocess.run(
        public_copy.command("dump", *words),
        capture_output=True,
        text=True,
        preexec_fn=drop,
        env=public_copy.env,
    )
    assert done.returncode == 3, done.stderr
    assert "belongs to user root" in done.stderr


# ---------------------------------------------------------------------- cores


@pytest.fixture
def make_core(tmp_path: Path) -> Callable[[int], Path]:
    def make(pid: int) -> Path:
        if shutil.which("gcore") is None:
            pytest.skip("needs gdb's gcore")
        command = ["gcore", "-o", str(tmp_path / "core"), str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (tmp_path / f"core.{pid}").exists(), done.stderr
        return tmp_path / f"core.{pid}"

    return make


def test_a_core_is_as_the_process(
    here: Standing, make_core: Callable[[int], Path]
) -> None:
    """The program is found at its recorded path, and it verifies the layout."""
    live = dumped(here.pid, "--fibers")
    core = dumped(make_core(here.pid), "--fibers")
    assert core["notes"] == []
    assert core["ruby_version"] == live["ruby_version"]
    assert core["pid"] == here.pid
    check_threads(core)
    for before, after in zip(live["threads"], core["threads"], strict=True):
        for key in ("tid", "name", "state", "address", "fiber", "frames", "fibers"):
            assert before[key] == after[key], key
        assert after["on_cpu"] is None


def test_a_core_of_a_chroot(
    standing: Standing, make_core: Callable[[int], Path]
) -> None:
    """The program is not at its recorded path. ``--exe`` must name the same program."""
    maps = Path(f"/proc/{standing.pid}/maps").read_text()
    (mapped,) = set(re.findall(r"\S+/libruby\S+", maps))
    library = Path(f"/proc/{standing.pid}/root{mapped}")
    if not library.exists():
        library = Path(mapped)
    exe = library.resolve() if str(library).startswith("/proc") else library
    core = make_core(standing.pid)
    check_threads(dumped(core, "--exe", exe))
    others = [
        p for p in rubies.DIRECTORY.glob("*/usr/lib/*/libruby*.so.?.?") if p.exists()
    ]
    for other in others:
        if other.resolve().read_bytes() != exe.read_bytes():
            _, err, code = run("dump", core, "--exe", other)
            assert code in (1, 2)
            assert "another build" in err or "not the program" in err
            break


def test_a_core_cut_short(here: Standing, make_core: Callable[[int], Path]) -> None:
    """A truncated core yields some threads or an error that gives the reason."""
    path = make_core(here.pid)
    size = path.stat().st_size
    for part in (9, 6, 3, 1):
        os.truncate(path, size * part // 10)
        out, err, code = run("dump", path, "--json")
        if code == 0:
            notes = " ".join(json.loads(out)["processes"][0]["notes"])
            assert "cut short" in notes
        else:
            assert code in (1, 4)
            assert err.startswith("rbtrace-py:")  # a long path has its own line


STACK = [
    ("Kernel#sleep", 2),
    ("Object#aaa", 2),
    ("Object#bbb", 6),
    ("Object#ccc", 10),
    ("block in <main>", 14),
    ("Kernel#loop", 13),
    ("<main>", 13),
]
"""The count of the program itself. The README of the cores counts one more for 2.7 and
3.1."""


@needs_cores
@pytest.mark.parametrize(
    ("name", "symbol", "address"),
    [
        ("2.1.6", "ruby_current_thread", 0x562658ABD7F0),
        ("2.5.0", "ruby_current_execution_context_ptr", 0x55DD8C3B7758),
        ("2.7.2", "ruby_current_execution_context_ptr", 0x7FDD8D626070),
        ("3.1.0", "ruby_current_vm_ptr", 0x7F0DC0C83C58),
    ],
)
def test_cores_of_others(name: str, symbol: str, address: int) -> None:
    """The symbol table is found by its shape."""
    path = CORES / f"ruby-{name}.core.gz"
    process = dumped(path, f"--symbol={symbol}={address:#x}")
    (thread,) = process["threads"]
    found = [(frame["name"], frame["line"]) for frame in thread["frames"]]
    assert found == STACK
    kinds = [frame["kind"] for frame in thread["frames"]]
    assert kinds == ["c", "ruby", "ruby", "ruby", "ruby", "c", "ruby"]
    assert {f["path"] for f in thread["frames"]} == {"ci/ruby-programs/infinite.rb"}
    assert process["ruby_version"] == name
    assert "not verified" in process["notes"][0]


@needs_cores
def test_symbols_that_are_given() -> None:
    words = ("ruby_current_vm_ptr=0x7f0dc0c83c58", "global_symbols=0x7f0dc0c75e80")
    path = CORES / "ruby-3.1.0.core.gz"
    process = dumped(path, *(f"--symbol={word}" for word in words))
    frames_ = process["threads"][0]["frames"]
    assert [(frame["name"], frame["line"]) for frame in frames_] == STACK


@needs_cores
def test_a_core_without_addresses() -> None:
    out, err, code = run("dump", CORES / "ruby-3.1.0.core.gz")
    assert (out, code) == ("", 1)
    assert "--exe FILE" in err
    assert "--symbol" in err


@needs_cores
@pytest.mark.parametrize("address", [0, 8, 0x7F0DC0C83C59, 0x7F0DC0C75E80, 1 << 63])
def test_a_wrong_address(address: int) -> None:
    words = f"--symbol=ruby_current_vm_ptr={address:#x}"
    _, err, code = run("dump", CORES / "ruby-3.1.0.core.gz", words)
    assert code == 1
    assert err.startswith("rbtrace-py: ")


GOES_ON = """
$stdout.sync = true
queue = Queue.new
thread = Thread.new { queue.pop; sleep 77 }
Thread.pass until queue.num_waiting == 1
puts "ready"
gets
queue << 1
Thread.pass until queue.num_waiting == 0 && thread.stop?
puts "done"
gets
"""


def is_at_rest(pid: int) -> bool:
    """Return whether the main thread reads its input and no other thread runs.

    It has then released the GVL and woken the threads that waited for the GVL.
    """
    main, *others = sorted(
        Path(f"/proc/{pid}/task").iterdir(), key=lambda at: int(at.name)
    )
    if not (main / "syscall").read_text().startswith("0 0x0 "):  # read(0, …
        return False
    return all((one / "syscall").read_text() != "running\n" for one in others)


def test_a_thread_that_changes_while_it_is_read_is_read_again(
    root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread changes between the reads of its stack and of its wait."""
    target = Target("ruby", "-e", GOES_ON)
    try:
        steps = iter([target.step])

        class Later(module.Waits):
            def __init__(self, *arguments: Any) -> None:
                for step in steps:
                    step()
                    assert comes_true(lambda: is_at_rest(target.pid))
                super().__init__(*arguments)

        # It reports a wait shortly before it waits, and may wait for Ruby's own locks
        # until then.
        assert comes_true(lambda: is_at_rest(target.pid))
        monkeypatch.setattr(module, "Waits", Later)
        with Process(target.pid) as process:
            (thread,) = (
                one for one in module.dump(process).threads if not one.thread.is_main
            )
        assert thread.stack is not None
        assert thread.wait is not None
        assert thread.stack.frames[-1].name == "Kernel#sleep"
        assert (thread.wait.call, thread.wait.seconds) == ("Kernel#sleep", 77.0)
    finally:
        target.close()
