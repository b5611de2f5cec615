"""States of threads, against what the threads do and what the kernel counts."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
import time
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
    """Of its threads in the order they were asked for."""
    words = program.ready_line.split()[1:]  # type: ignore[attr-defined]
    return [int(word.split(":")[1]) for word in words]


@pytest.fixture(params=[True, False], ids=["schedstat", "stat alone"])
def schedstat(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(tasks_module, "_has_schedstat", lambda: False)
    return request.param


def ran_and_waited(pid: int, tid: int) -> tuple[int, int]:
    text = Path(f"/proc/{pid}/task/{tid}/schedstat").read_text()
    ran, waited, _ = map(int, text.split())
    return ran, waited


def test_shares_of_running_threads(worker: Path, schedstat: bool) -> None:
    """Within 2 points of what the kernel counted: running, or ready to."""
    with running(worker, 5, 2, 0) as program, Process(program.pid) as process:
        tids = tids_of(program)
        tasks = Tasks(process)
        seen = dict.fromkeys(tids, 0)
        before = {tid: ran_and_waited(program.pid, tid) for tid in tids}
        began, rounds = time.monotonic_ns(), 0
        while time.monotonic_ns() - began < 2_000_000_000:
            rounds += 1
            for tid in tasks.running(tids):
                seen[tid] += 1
            time.sleep(0.0007 + 0.0006 * (rounds % 7) / 7)  # no beat with the tick
        elapsed = time.monotonic_ns() - began
        for tid in tids:
            ran, waited = (
                100 * (now - then) / elapsed
                for now, then in zip(
                    ran_and_waited(program.pid, tid), before[tid], strict=True
                )
            )
            share = 100 * seen[tid] / rounds
            assert ran - 2 <= share <= ran + waited + 2, (share, ran, waited)
        tasks.close()


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
        assert not state.is_running
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


def test_no_more_descriptors_than_there_is_room(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "_room_for_tasks", lambda: 2)
    with running(worker, 10, 0, 0, 10) as program, Process(program.pid) as process:
        tids = tids_of(program)
        before = open_descriptors()
        with Tasks(process) as tasks:
            for _ in range(3):
                assert tasks.running(tids) == {tids[0], tids[3]}
            assert [tasks.state(tid).letter for tid in tids] == ["R", "S", "S", "R"]  # type: ignore[union-attr]
            assert open_descriptors() == before + 4
        assert open_descriptors() == before


def test_room() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 <= tasks_module._room_for_tasks() <= soft // 2
