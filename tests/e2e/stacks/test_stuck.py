"""``dump`` names what threads wait for: deliberate hangs, beside a live thread."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rbtrace_py
import rubies
from commands import run
from processes import TARGETS, Target, comes_true, task_states
from rbtrace_py.linux.process import Process
from rbtrace_py.model.dump import Dump
from rbtrace_py.model.waits import WaitKind
from rbtrace_py.session.stacks.dump import dump
from rbtrace_py.session.stacks.ruby_process import open_vm
from ruby_builds import ARCHIVES, Build, running

HANGS = (
    "mutexes", "three", "monitors", "owned", "queue", "full", "condition", "joins",
    "pipe", "full_pipe", "socket", "tcp", "accepting", "selecting", "child", "flock",
    "fifo", "asleep", "limited", "unix_accepting", "output", "input", "timed",
    "closing", "requires", "autoloads",
)  # fmt: skip

EVERY = [*rubies.EACH, *map(rubies.chroot, ARCHIVES)]
JITTED = [
    Build("4.0.5-shared", "yjit"),
    *(Build("4.1.0dev-shared", jit) for jit in ("yjit", "zjit", "zjit-default")),
]
SINCE_3_0 = [one for one in EVERY if "2.7" not in str(one)]


class Stuck(Target):
    """stuck.rb in a Ruby. It reports its pid itself, as a script may start it."""

    def __init__(
        self, ruby: list[str], *hangs: str, source: str = "stacks/stuck.rb"
    ) -> None:
        super().__init__(*ruby, str(TARGETS / source), *hangs)

    @property
    def pid(self) -> int:
        return int(self.ready.split()[1])

    def await_rest(self) -> None:
        """Wait until none of its threads needs a CPU. Ruby reports a sleep shortly
        before the thread sleeps."""
        assert comes_true(lambda: "R" not in task_states(self.pid))


@dataclass
class Dumped:
    """A dump as JSON, with its threads by name."""

    process: Any
    threads: dict[str, Any]

    def wait(self, name: str) -> Any:
        return self.threads[name]["waits_for"]

    def holder(self, name: str) -> str:
        return str(self.wait(name)["holder"]["name"])

    def descriptor(self, name: str) -> tuple[str, str]:
        """Return the action and the target of the only descriptor that a thread
        awaits."""
        assert self.wait(name)["kind"] == "io", self.wait(name)
        (one,) = self.wait(name)["descriptors"]
        return one["action"], one["target"]


def dumped(pid: int, *options: str) -> Dumped:
    out, err, code = run("dump", pid, "--json", *options)
    assert code == 0, err
    (process,) = json.loads(out)["processes"]
    named = [
        (thread["name"] or ("main" if thread["main"] else ""), thread)
        for thread in process["threads"]
    ]
    return Dumped(process, dict(named))


def words(name: str) -> list[str]:
    return Build(name).words() if name in ARCHIVES else rubies.ruby(name)


@pytest.fixture(scope="module", params=EVERY)
def stuck(request: pytest.FixtureRequest) -> Iterator[Stuck]:
    target = Stuck(words(request.param), *HANGS)
    target.wait_until_it_reads()
    target.await_rest()
    yield target
    target.close()


def test_each_hang_is_named(stuck: Stuck, root: None) -> None:
    found = dumped(stuck.pid)
    assert found.descriptor("main")[0] == "read"
    for name, other in (
        ("mutexes a", "mutexes b"),
        ("mutexes b", "mutexes a"),
        ("three a", "three b"),
        ("three b", "three c"),
        ("three c", "three a"),
        ("owned b", "owned a"),
    ):
        wait = found.wait(name)
        assert (wait["kind"], wait["class"]) == ("mutex", "Thread::Mutex"), name
        assert found.holder(name) == other
        assert wait["holder"]["tid"] == found.threads[other]["tid"]
    for name, other in (("monitors a", "monitors b"), ("monitors b", "monitors a")):
        wait = found.wait(name)
        assert wait["kind"] == "mutex"
        assert wait["class"] in ("Monitor", "Thread::Monitor"), name  # since 4.1
        assert found.holder(name) == other
    for name, other in (("requires a", "requires b"), ("requires b", "requires a")):
        wait = found.wait(name)
        assert (wait["kind"], wait["call"]) == ("mutex", "Kernel#require")
        assert wait["path"].endswith(f"/{other[-1]}.rb")
        assert found.holder(name) == other
    for name, other in (
        ("autoloads a", "autoloads b"),
        ("autoloads b", "autoloads a"),
    ):
        assert found.wait(name)["kind"] == "mutex"
        assert found.holder(name) == other
    if found.process["ruby_version"] < "3.2":  # later versions have a Mutex
        wait = found.wait("autoloads a")
        assert (wait["call"], wait["path"]) == ("Module#autoload", "Loaded")
    check_queues(found)
    check_descriptors(found)
    check_others(found)
    check_deadlocks(found.process["deadlocks"])
    stuck_ones = found.threads.keys() - {"live"}
    assert {found.wait(name)["kind"] for name in stuck_ones} == {
        "mutex", "queue", "condition variable", "thread", "io", "open", "file lock",
        "child process", "sleep",
    }  # fmt: skip


def check_queues(found: Dumped) -> None:
    keys = ("kind", "class", "length", "limit", "waiting")
    for name in ("queue a", "queue b"):
        wait = found.wait(name)
        expected = ["queue", "Thread::Queue", 0, None, 2]
        assert [wait[key] for key in keys] == expected
    wait = found.wait("full")
    assert [wait[key] for key in keys] == ["queue", "Thread::SizedQueue", 2, 2, 1]
    wait = found.wait("condition")
    assert wait["kind"] == "condition variable"
    assert wait["class"] == "Thread::ConditionVariable"
    assert wait["call"] == "Thread::ConditionVariable#wait"


def check_descriptors(found: Dumped) -> None:
    for name, action in (
        ("pipe", "read"),
        ("full_pipe", "write"),
        ("selecting", "read"),
    ):
        assert found.descriptor(name)[0] == action
        assert re.fullmatch(r"pipe:\[\d+\]", found.descriptor(name)[1])
        (other,) = found.wait(name)["descriptors"][0]["other_ends"]
        assert other == found.wait(name)["descriptors"][0]["fd"] + (
            -1 if action == "write" else 1
        )
    for name, action, command in (
        ("output", "read", "sleep 1001"),
        ("input", "write", "sleep 1002"),
    ):
        assert found.descriptor(name)[0] == action
        (pipe,) = found.wait(name)["descriptors"]
        assert [one["command"] for one in pipe["other_processes"]] == [command]
    assert found.descriptor("socket")[0] == "read"
    assert re.fullmatch(r"unix socket:\[\d+\]", found.descriptor("socket")[1])
    address = r"127\.0\.0\.1:\d+"
    assert found.descriptor("tcp")[0] == "read"
    assert re.fullmatch(f"tcp {address} -> {address}", found.descriptor("tcp")[1])
    assert found.descriptor("accepting")[0] == "accept"
    assert re.fullmatch(f"tcp {address}, listening", found.descriptor("accepting")[1])


def check_others(found: Dumped) -> None:
    for name, command in (("child", "sleep 1000"), ("closing", "sleep 1003")):
        wait = found.wait(name)
        assert (wait["kind"], wait["any_child"]) == ("child process", False)
        assert [child["command"] for child in wait["children"]] == [command]
    wait = found.wait("flock")
    assert wait["kind"] == "file lock"
    (holder,) = wait["processes"]
    assert "stuck.rb" in holder["command"]
    assert "/lock" in wait["descriptors"][0]["target"]
    wait = found.wait("fifo")
    assert wait["kind"] == "open"
    assert wait["path"].endswith(".fifo")
    sleeps = [found.wait(f"asleep {letter}") for letter in "abcd"]
    assert {wait["kind"] for wait in sleeps} == {"sleep"}
    assert [wait["seconds"] for wait in sleeps] == [None, 1000.5, None, 1000.5]
    assert [wait["forever"] for wait in sleeps] == [True, False, True, False]
    for name, other in (("joins a", "joins b"), ("joins b", "joins a")):
        assert found.wait(name)["kind"] == "thread"
        assert found.holder(name) == other
    limits = (("limited a", "limited b", 1000), ("limited b", "limited a", 2000.5))
    for name, other, seconds in limits:
        assert found.holder(name) == other
        assert found.wait(name)["seconds"] == seconds
    check_limits(found)
    action, target = found.descriptor("unix_accepting")
    assert action == "accept"
    assert target.endswith(".socket, listening")


def check_limits(found: Dumped) -> None:
    timed = {
        name.removeprefix("timed "): (wait["kind"], wait["seconds"])
        for name in found.threads
        if name.startswith("timed ")
        for wait in [found.wait(name)]
    }
    if found.process["ruby_version"] >= "3.2":
        assert timed.pop("queue") == ("queue", 1008)
    assert timed == {
        "condition": ("condition variable", 1004.5),
        "monitor": ("condition variable", 1005),
        "select": ("io", 1006),
        "io": ("io", 1007),
        "own": ("io", 1009),
    }
    unlimited = ("queue a", "condition", "selecting", "joins a", "tcp")
    assert {found.wait(name)["seconds"] for name in unlimited} == {None}


def check_deadlocks(cycles: Any) -> None:
    assert [[waiter["name"] for waiter in cycle] for cycle in cycles] == [
        ["mutexes a", "mutexes b"],
        ["three a", "three b", "three c"],
        ["monitors a", "monitors b"],
        ["joins a", "joins b"],
        ["requires a", "requires b"],
        ["autoloads a", "autoloads b"],
    ]


def test_with_a_pause_it_is_the_same(stuck: Stuck, root: None) -> None:
    before, after = dumped(stuck.pid), dumped(stuck.pid, "--pause")
    alive = {"live"}
    for name in before.threads.keys() - alive:
        assert before.wait(name) == after.wait(name), name
    assert before.process["deadlocks"] == after.process["deadlocks"]


@pytest.mark.parametrize("name", EVERY)
def test_a_gvl_that_is_held(name: str, root: None) -> None:
    """Threads that slept are in its queue, whatever their status is."""
    target = Stuck(words(name), "gvl")
    try:
        assert comes_true(lambda: has_system_call(target.pid, 34))
        assert comes_true(lambda: has_kind(target.pid, "live", "gvl"), pause=0.1)
        with Process(target.pid) as process:
            kinds = [wait_of(dump(process), "live") for _ in range(20)]
        taken = [dumped(target.pid)]
        if taken[0].process["ruby_version"] >= "3.2":
            let_running_be(target.pid, "live")
            taken.append(dumped(target.pid))
    finally:
        os.kill(target.pid, signal.SIGKILL)
        target.close()
    assert kinds == [WaitKind.GVL] * 20
    for found in taken:
        check_gvl(found)


def wait_of(taken: Dump, name: str) -> WaitKind | None:
    (wait,) = [one.wait for one in taken.threads if one.thread.name == name]
    return None if wait is None else wait.kind


def let_running_be(pid: int, name: str) -> None:
    """Make that thread its ractor's running one.

    Ruby itself leaves it so for a new thread that is not interrupted before it calls
    code that keeps the GVL. Here, the program stays in pause(2).
    """
    with Process(pid) as process:
        _, _, vm = open_vm(process, None, None)
        (thread,) = [one for one in vm.threads() if one.name == name]
    memory = os.open(f"/proc/{pid}/mem", os.O_WRONLY)
    os.pwrite(memory, struct.pack("=Q", thread.ec), thread.running)
    os.close(memory)


def check_gvl(found: Dumped) -> None:
    assert found.wait("live")["kind"] == "gvl"
    assert found.holder("live") == "gvl"
    assert found.threads["live"]["state"] == "waiting"
    holder = found.threads["gvl"]
    assert holder["state"] == "sleeping"
    assert holder["waits_for"]["call"] == "Kernel.syscall"
    assert holder["gvl_waiters"] >= 1


@pytest.mark.parametrize("name", EVERY)
def test_an_exit_that_a_thread_keeps_up(name: str, root: None) -> None:
    target = Stuck(words(name), "exiting")
    try:
        assert comes_true(lambda: has_kind(target.pid, "main", "exit"), pause=0.1)
        # The other threads are killed, but exist until each of them gets the GVL once
        # more.
        names = {"main", "exiting"}
        assert comes_true(lambda: dumped(target.pid).threads.keys() == names, pause=0.1)
        found = dumped(target.pid)
    finally:
        os.kill(target.pid, signal.SIGKILL)
        target.close()
    assert found.threads["main"]["frames"] == []
    assert found.wait("exiting")["call"] == "Thread::Queue#pop"


@pytest.mark.parametrize("name", SINCE_3_0)
def test_a_ractor_that_gets_no_message(name: str, root: None) -> None:
    target = Stuck(words(name), "ractor")
    target.await_rest()
    try:
        assert comes_true(lambda: has_kind(target.pid, "", "ractor"), pause=0.1)
        found = dumped(target.pid)
    finally:
        target.close()
    waits = {one: found.wait(one) for one in ("", "ractor")}
    assert {wait["kind"] for wait in waits.values()} == {"ractor"}
    calls = [wait["call"] for wait in waits.values()]
    assert calls in (
        ["Ractor.receive", "Ractor#take"],
        ["Ractor.receive", "Ractor#value"],
    )
    assert waits[""]["ractor"] is None
    assert waits["ractor"]["ractor"] == found.threads[""]["ractor"] == 2


@pytest.mark.parametrize("name", EVERY)
def test_a_name_server_that_is_silent(name: str, root: None) -> None:
    """The thread queries it itself. From Ruby 3.3 on, a native thread does so."""
    target = Stuck(words(name), "lookup")
    try:
        assert comes_true(lambda: name_servers(target.pid) != [], pause=0.1)
        found = set(name_servers(target.pid))
    finally:
        os.kill(target.pid, signal.SIGKILL)
        target.close()
    assert {action for action, _ in found} == {"read"}
    assert all(re.search(r" -> 127\.9\.\d+\.\d+:53$", target) for _, target in found)


def name_servers(pid: int) -> list[tuple[str, str]]:
    """Return the UDP sockets that a thread awaits, directly or through native
    threads."""
    wait = dumped(pid).wait("lookup")
    if wait is None:
        return []  # the thread still runs
    every = [*(wait["descriptors"] or ()), *(wait["native"] or ())]
    every = [one for one in every if one["target"].startswith("udp")]
    return [(one["action"], one["target"]) for one in every]


@pytest.mark.parametrize("name", SINCE_3_0)
def test_fibers_of_a_scheduler(name: str, root: None) -> None:
    """They are listed without --fibers, with what their scheduler keeps from them."""
    target = Stuck(words(name), "scheduler")
    target.await_rest()
    try:
        found = dumped(target.pid)
    finally:
        target.close()
    assert found.wait("scheduler")["kind"] == "queue"
    waits = [fiber["waits_for"] for fiber in found.threads["scheduler"]["fibers"]]
    assert sorted(wait["kind"] for wait in waits) == ["io", "mutex", "mutex", "queue"]
    assert {wait["call"] for wait in waits} == {
        "Thread::Queue#pop", "IO#read", "Thread::Mutex#lock"
    }  # fmt: skip
    for wait in waits:
        if wait["kind"] == "mutex":
            assert wait["holder"]["name"] == "scheduler"
    (cycle,) = found.process["deadlocks"]
    assert [waiter["suspended"] for waiter in cycle] == [True, True]
    assert len({waiter["fiber"] for waiter in cycle}) == 2


@pytest.mark.parametrize("name", SINCE_3_0)
def test_a_lock_of_a_suspended_fiber(name: str, root: None) -> None:
    target = Stuck(words(name), "fibers")
    target.await_rest()
    try:
        plain, found = dumped(target.pid), dumped(target.pid, "--fibers")
    finally:
        target.close()
    holders = [one.wait("fibers b")["holder"] for one in (plain, found)]
    assert [one["name"] for one in holders] == ["fibers a"] * 2
    assert [one["suspended"] for one in holders] == [True] * 2
    (fiber,) = found.threads["fibers a"]["fibers"]
    assert holders[1]["fiber"] == fiber["address"]
    # Without --fibers, it is not searched for if the Mutex has only its number.
    assert holders[0]["fiber"] in (None, fiber["address"])


def test_a_child_in_another_pid_namespace(root: None) -> None:
    """The VM has the child's inner number, which belongs to another process outside."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    target = Stuck([*unshare, "ruby"], "child")
    try:
        outer = target.process.pid
        children = Path(f"/proc/{outer}/task/{outer}/children")
        (pid,) = children.read_text().split()
        found = dumped(int(pid))
    finally:
        target.close()
    (child,) = found.wait("child")["children"]
    assert child["command"] == "sleep 1000"
    assert child["pid"] != target.pid


def test_no_deadlock_is_reported_if_none_exists(root: None) -> None:
    """A third of the dumps named a deadlock before the threads' states were checked."""
    target = Stuck(["ruby"], source="stacks/locking.rb")
    try:
        with Process(target.pid) as process:
            found = [dump(process) for _ in range(40)]
    finally:
        target.close()
    kinds = {one.wait.kind for taken in found for one in taken.threads if one.wait}
    assert kinds >= {WaitKind.MUTEX, WaitKind.THREAD}
    assert [taken.deadlocks for taken in found] == [()] * 40
    locking = [
        (one.thread.address, one.wait.holder.thread.address)
        for taken in found
        for one in taken.threads
        if one.wait and one.wait.kind is WaitKind.MUTEX and one.wait.holder
    ]
    assert all(waiter != holder for waiter, holder in locking)


@pytest.mark.parametrize("name", EVERY)
def test_locals(name: str, root: None) -> None:
    """No method of the program is called: its inspect would end the program."""
    target = Stuck(words(name), source="stacks/locals.rb")
    try:
        found = dumped(target.pid, "--locals")
        plain = dumped(target.pid)
        taken = rbtrace_py.dump(target.pid, locals=True)
    finally:
        target.close()
    frames = found.threads["worker"]["frames"]
    values = [[(one["name"], one["value"]) for one in f["locals"]] for f in frames]
    address = re.compile(r":0x[0-9a-f]+>")
    values = [[(n, address.sub(">", v)) for n, v in pairs] for pairs in values]
    assert values[0] == []
    assert values[1] == LOCALS
    assert values[2] == [("item", "1")]
    take = next(
        place for place, one in enumerate(frames) if one["name"] == "Order.take"
    )
    assert values[take - 1] == []  # Array#each, which Ruby implements in Ruby
    assert values[take][:4] == [
        ("count", "42"),
        ("rest", '["more"]'),
        ("name", '"shop"'),
        ("options", "#<Hash>"),
    ]
    assert dict(values[take])["ratio"] == "0.75"
    assert dict(values[take])["block"] in ("(the block, if any)", "#<Proc>")
    assert values[-1] == [("outer", ":a symbol that is made")]
    assert "locals" not in plain.threads["worker"]["frames"][0]
    (worker,) = [one for one in taken.threads if one.thread.name == "worker"]
    ours = [
        [(one.name, address.sub(">", one.value)) for one in frame]
        for frame in reversed(worker.locals)
    ]
    assert ours == values


@pytest.mark.rubies
@pytest.mark.parametrize("build", JITTED, ids=str)
def test_locals_that_a_jit_keeps(build: Build, root: None) -> None:
    """The JIT keeps the newest frame's locals in registers. The VM stack is
    outdated."""
    with running(build, "stacks/spinning.rb") as target:

        def frames() -> list[dict[str, Any]]:
            dump = dumped(target.pid, "--locals", "--pause")
            return list(dump.threads["main"]["frames"])

        assert comes_true(lambda: frames()[0]["name"] == "Object#spin")
        found = frames()
    values = [[(one["name"], one["value"]) for one in f["locals"]] for f in found]
    assert [frame["name"] for frame in found[:2]] == ["Object#spin", "Object#outer"]
    kept = "(unavailable: the JIT keeps it)"
    assert values[0] == [
        (name, kept) for name in ("limit", "factor", "count", "product")
    ]
    assert values[1] == [
        ("size", str(1 << 60)),
        ("scale", "7"),
        ("local", str((1 << 60) + 1)),
        ("other", "[7]"),
        ("found", "nil"),
    ]


LOCALS = [
    ("text", '"text"'),
    ("symbol", ":a symbol that is made"),
    ("long", f'"{"x" * 100}"…'),
    ("raw", r'"a\x1b[31m\"\xff"'),
    ("list", '["text", [1, #<Array>], 1, 2, 3, … 11 in all]'),
    ("none", "true"),
    ("unknown", "false"),
    ("klass", "Order"),
    ("order", "#<Order>"),
    ("huge", "1.5e+300"),
    ("zero", "0.0"),
    ("later", "nil"),
]


def has_system_call(pid: int, number: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return any(
        (task / "syscall").read_text().startswith(f"{number} ") for task in tasks
    )


def has_kind(pid: int, name: str, kind: str) -> bool:
    wait = dumped(pid).wait(name)
    return wait is not None and wait["kind"] == kind


def test_text(root: None) -> None:
    target = Stuck(["ruby"], "mutexes", "queue", "pipe", "child")
    try:
        out, err, code = run("dump", target.pid)
        each, _, _ = run("dump", target.pid, "--idle")
    finally:
        target.close()
    assert (err, code) == ("", 0)
    assert re.search(r'^"queue b" tid \d+, sleeping$', each, re.MULTILINE)
    text = re.sub(r"tid \d+", "tid N", re.sub(r"0x[0-9a-f]+", "0x0", out))
    text = re.sub(r"fd \d+", "fd N", re.sub(r"\[\d+\]", "[N]", text))
    text = re.sub(r"process \d+ \(", "process N (", text)
    for paragraph in (
        """
"mutexes a" tid N, sleeping
  waits for: Thread::Mutex 0x0, held by "mutexes b" (tid N)
    Thread::Mutex#synchronize""",
        """
"queue a" tid N, sleeping
  and 1 more thread: "queue b" tid N
  waits for: Queue#pop of Thread::Queue 0x0, empty, 2 waiting
    Thread::Queue#pop""",
        """
"pipe" tid N, sleeping
  waits for: read of fd N (pipe:[N]); its other end here: fd N
    IO#read""",
        """
"child" tid N, sleeping
  waits for: process N (sleep 1000) to end
    Process.wait  """,
    ):
        assert paragraph in text
    assert text.endswith(
        """
deadlock: "mutexes a" (tid N) → "mutexes b" (tid N) → "mutexes a" (tid N)
"""
    )
