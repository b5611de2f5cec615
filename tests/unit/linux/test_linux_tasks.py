"""States of threads, compared with the threads' actions and the kernel's counts."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from linux_targets import compile_c, running

from rbtrace_py.linux import tasks as tasks_module
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.tasks import Tasks

SOURCE = """
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static sem_t said;
static long on_cpu(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}
/* Burns so many of ten milliseconds, and sleeps the others. */
static void *work(void *busy) {
  long share = (long)busy;
  printf(" %ld:%d", share, gettid());
  fflush(stdout);
  sem_post(&said);
  for (;;) {
    long until = on_cpu() + share * 1000000;
    if (!share) pause();
    while (on_cpu() < until) {}
    if (share < 10) usleep((10 - share) * 1000);
  }
}
int main(int argc, char **argv) {
  pthread_t thread;
  printf("ready");
  fflush(stdout);
  for (int i = 1; i < argc; i++) {
    pthread_create(&thread, NULL, work, (void *)atol(argv[i]));
    sem_wait(&said);
  }
  puts("");
  fflush(stdout);
  getchar();
  return 0;
}
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "worker.c").write_text(SOURCE)
    return compile_c(folder / "worker.c", folder / "worker", "-pthread")


def tids_of(program: subprocess.Popen[str]) -> list[int]:
    """Return the IDs of its threads in the order of their creation."""
    words = program.ready_line.split()[1:]  # type: ignore[attr-defined]
    return [int(word.split(":")[1]) for word in words]


@pytest.fixture(params=[True, False], ids=["schedstat", "stat alone"])
def schedstat(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(tasks_module, "_has_schedstat", lambda: False)
    return request.param


class Witness:
    """The kernel's answers about a thread, asked before and after ``Tasks``.

    Only where all of it is the same both times, how long the thread has run to the
    nanosecond too, is it known what the answer has to be.
    """

    def __init__(self, pid: int, tid: int) -> None:
        self._folder = Path(f"/proc/{pid}/task/{tid}")
        self.asleep = self.awake = 0
        self._ran_when_asleep: str | None = ""

    def see(self) -> tuple[str, str]:
        """Its state, and how long and how often it has been on a CPU."""
        stat = (self._folder / "stat").read_text()
        return stat[stat.rindex(")") + 2], (self._folder / "schedstat").read_text()

    def judge(
        self,
        before: tuple[str, str],
        answer: bool,
        after: tuple[str, str],
        schedstat: bool,
    ) -> None:
        letter, ran = before
        is_known = before == after
        if is_known and letter == "S":
            self.asleep += 1
            assert not answer
        elif is_known and letter == "R" and answer:
            self.awake += 1
        elif is_known and letter == "R":
            # Woken, but not on a CPU since it was asleep: only with schedstat alone
            # is that not told apart.
            assert schedstat
            assert self._ran_when_asleep in (ran, None)
        if answer:
            self._ran_when_asleep = ""
        else:
            self._ran_when_asleep = ran if is_known else None


def test_running_threads_are_those_that_the_kernel_runs(
    worker: Path, schedstat: bool
) -> None:
    """Even on a busy machine, no sleeping thread is reported as running, and no running
    thread as sleeping."""
    with running(worker, 5, 2, 0, 10) as program, Process(program.pid) as process:
        tids = tids_of(program)
        witnesses = [Witness(program.pid, tid) for tid in tids]
        half, fifth, idle, busy = witnesses
        end = time.monotonic() + 90
        with Tasks(process) as tasks:
            while (
                min(
                    *(half.awake, half.asleep, fifth.awake, fifth.asleep),
                    *(idle.asleep, busy.awake),
                )
                < 50
            ):
                assert time.monotonic() < end
                for tid, witness in zip(tids, witnesses, strict=True):
                    before = witness.see()
                    answer = tid in tasks.running([tid])
                    witness.judge(before, answer, witness.see(), schedstat)
        assert idle.awake == busy.asleep == 0


def test_cpu_time(worker: Path, schedstat: bool) -> None:
    with running(worker, 10, 0) as program, Process(program.pid) as process:
        busy, idle = tids_of(program)
        tasks = Tasks(process)
        first = tasks.cpu_ns(busy)
        assert first is not None
        while (tasks.cpu_ns(busy) or 0) < first + 50_000_000:
            pass
        state = tasks.state(idle)
        assert state is not None
        assert state.letter == "S"
        assert state.letter != "R"
        assert state.comm == "worker"
        assert state.cpu_ns < 50_000_000
        tasks.close()


def test_stopped(worker: Path) -> None:
    with running(worker, 10, 0) as program, Process(program.pid) as process:
        busy, idle = tids_of(program)
        tasks = Tasks(process)
        assert busy in tasks.running([busy, idle])
        program.send_signal(signal.SIGSTOP)
        os.waitpid(program.pid, os.WUNTRACED)
        assert tasks.running([busy, idle]) == set()
        state = tasks.state(busy)
        assert state is not None
        assert state.is_stopped
        program.send_signal(signal.SIGCONT)
        while busy not in tasks.running([busy, idle]):
            pass
        tasks.close()


def test_threads_that_come_and_go() -> None:
    with Process(os.getpid()) as process, Tasks(process) as tasks:
        gate, tids = threading.Event(), []
        before = open_descriptors()

        def wait() -> None:
            tids.append(threading.get_native_id())
            gate.wait()

        threads = [threading.Thread(target=wait) for _ in range(20)]
        for thread in threads:
            thread.start()
        while len(tids) < 20:
            pass
        assert set(tids) <= set(tasks.refresh())
        assert all(tasks.state(tid) for tid in tids)
        assert threading.get_native_id() in tasks.running([threading.get_native_id()])
        gate.set()
        for thread in threads:
            thread.join()
        while set(tasks.refresh()) & set(tids):
            pass  # join returns before the kernel's thread has ended
        assert tasks.running(tids) == set()
        assert [tasks.state(tid) for tid in tids] == [None] * 20
        tasks.close()
        assert open_descriptors() <= before


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_process_that_ended(worker: Path) -> None:
    with running(worker, 10) as program, Process(program.pid) as process:
        tids = tids_of(program)
        tasks = Tasks(process)
        assert tasks.running(tids) == set(tids)
        program.kill()
        program.wait()
        assert tasks.running(tids) == set()
        assert tasks.refresh() == []
        assert tasks.state(tids[0]) is None
        assert tasks.cpu_ns(tids[0]) is None
        tasks.close()


def test_descriptors_are_left_for_others(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process leaves descriptors for the others, however many there are."""
    taken = os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(tasks_module, "_highest_descriptor", lambda: taken + 8)
    with (
        running(worker, 10, 0, 0, 10) as program,
        Process(program.pid) as process,
        Tasks(process) as one,
        Tasks(process) as other,
    ):
        tids = tids_of(program)
        for tasks in (one, other):
            for _ in range(3):
                assert tasks.running(tids) == {tids[0], tids[3]}
            letters = [tasks.state(tid).letter for tid in tids]  # type: ignore[union-attr]
            assert letters == ["R", "S", "S", "R"]
        held = open_descriptors()
        one.close()
        other.close()
        assert held - open_descriptors() < 10
    os.close(taken)


def test_descriptors_are_not_used_up() -> None:
    """If descriptors are scarce, no thread is mistaken for an ended one."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = open_descriptors() + 150
    gate = threading.Event()
    threads = [threading.Thread(target=gate.wait) for _ in range(100)]
    for thread in threads:
        thread.start()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
        with Process(os.getpid()) as process, ExitStack() as stack:
            tids = process.threads()
            for _ in range(20):
                tasks = stack.enter_context(Tasks(process))
                tasks.running(tids)
                assert all(tasks.state(tid) for tid in tids)
            assert os.close(os.open("/dev/null", os.O_RDONLY)) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        gate.set()
        for thread in threads:
            thread.join()


def test_time_in_a_run_queue() -> None:
    """This thread shares its CPU with a program that never waits."""
    tid = threading.get_native_id()
    allowed = os.sched_getaffinity(0)
    program = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        cpu = {max(allowed)}
        os.sched_setaffinity(program.pid, cpu)
        os.sched_setaffinity(0, cpu)
        with Process(os.getpid()) as process, Tasks(process) as tasks:
            before = now = tasks.times(tid)
            assert before is not None
            end = time.monotonic() + 60
            while now is not None and now[1] < before[1] + 20_000_000:
                assert time.monotonic() < end
                now = tasks.times(tid)
            assert now is not None
            assert now[0] == pytest.approx(tasks.cpu_ns(tid), abs=20_000_000)
    finally:
        os.sched_setaffinity(0, allowed)
        program.kill()
        program.wait()


def test_times_of_a_thread_that_ended(worker: Path, schedstat: bool) -> None:
    with running(worker, 10) as program, Process(program.pid) as process:
        [tid] = tids_of(program)[:1]
        with Tasks(process) as tasks:
            times = tasks.times(tid)
            assert times is not None
            assert schedstat or times[1] == 0
            program.kill()
            program.wait()
            assert tasks.times(tid) is None
