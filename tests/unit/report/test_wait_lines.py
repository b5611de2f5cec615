"""The reasons of threads' waits, in words that fit on a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rbtrace_py.model.dump import Dump, DumpedThread
from rbtrace_py.model.stacks import RubyThread, ThreadState
from rbtrace_py.model.waits import Descriptor, OtherProcess, Wait, Waiter, WaitKind
from rbtrace_py.report.style import Style
from rbtrace_py.report.terminal.dump import dump_lines
from rbtrace_py.report.terminal.waits import wait_text

A = RubyThread(1, 5, 0x5000, "a")
B = RubyThread(1, None, 0x6000, "")
LOCK = {"object": 0x7F00, "class_name": "Thread::Mutex"}
PIPE = Descriptor(7, "read", "pipe:[9]")
DNS = Descriptor(8, "read", "udp a -> b:53")
OUTPUT = replace(PIPE, other_processes=(OtherProcess(2, "ls"), OtherProcess(3)))


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (
            Wait(WaitKind.MUTEX, holder=Waiter(A), **LOCK),
            'Thread::Mutex 0x7f00, held by "a" (tid 5)',
        ),
        (
            Wait(WaitKind.MUTEX, holder=Waiter(A, is_suspended=True), **LOCK),
            'Thread::Mutex 0x7f00, held by another fiber of "a" (tid 5)',
        ),
        (
            Wait(WaitKind.MUTEX, holder=Waiter(B), **LOCK),
            "Thread::Mutex 0x7f00, held by thread",
        ),
        (
            Wait(WaitKind.MUTEX, is_free=True, **LOCK),
            "Thread::Mutex 0x7f00, free just now",
        ),
        (Wait(WaitKind.MUTEX, **LOCK), "Thread::Mutex 0x7f00, holder unknown"),
        (
            Wait(
                WaitKind.MUTEX,
                "Kernel#require",
                object=8,
                class_name="?",
                path="shop",
                holder=Waiter(A, 0x10, is_suspended=True),
            ),
            "a lock of Kernel#require (shop),"
            ' held by suspended fiber 0x10 of "a" (tid 5)',
        ),
        (
            Wait(WaitKind.MUTEX, holder=Waiter(A, 0x10, True, True), **LOCK),
            'Thread::Mutex 0x7f00, held by an ended fiber of "a" (tid 5)',
        ),
        (
            Wait(WaitKind.QUEUE, "Queue#pop", object=8, class_name="Jobs", length=1),
            "Queue#pop of Jobs 0x8, 1 item",
        ),
        (
            Wait(
                WaitKind.QUEUE,
                "Thread::SizedQueue#<<",
                object=8,
                class_name="Jobs",
                length=1,
                limit=2,
                waiting=0,
            ),
            "SizedQueue#<< of Jobs 0x8, 1 of 2, 0 waiting",
        ),
        (
            Wait(WaitKind.IO, descriptors=(PIPE,), seconds=1.5),
            "read of fd 7 (pipe:[9]), for 1.5 s at most",
        ),
        (Wait(WaitKind.THREAD), "a thread to end, which is not in the list"),
        (Wait(WaitKind.GVL, holder=Waiter(A)), 'the GVL, held by "a" (tid 5)'),
        (Wait(WaitKind.IO, descriptors=(PIPE,)), "read of fd 7 (pipe:[9])"),
        (
            Wait(WaitKind.IO, "IO#read", descriptors=(Descriptor(7, ""),)),
            "IO#read of fd 7",
        ),
        (
            Wait(WaitKind.SYSTEM_CALL, "X#y", system_call="futex", native=(DNS,)),
            "system call futex, in X#y;"
            " native threads wait for: read of fd 8 (udp a -> b:53)",
        ),
        (
            Wait(WaitKind.IO, descriptors=(OUTPUT,)),
            "read of fd 7 (pipe:[9]); its other end: process 2 (ls), process 3",
        ),
        (
            Wait(WaitKind.IO, descriptors=(PIPE,) * 5),
            "read of fd 7 (pipe:[9]) or read of fd 7 (pipe:[9]) or"
            " read of fd 7 (pipe:[9]) or 2 more",
        ),
        (
            Wait(WaitKind.IO, descriptors=(Descriptor(3, "epoll", watched=(4, 5)),)),
            "an event of fd 3, watches fd 4, 5",
        ),
        (
            Wait(WaitKind.CHILD, is_any_child=True),
            "any child process to end: none found",
        ),
        (
            Wait(WaitKind.CHILD, children=(OtherProcess(2, "ls"), OtherProcess(3))),
            "a child process to end: process 2 (ls), process 3",
        ),
        (
            Wait(WaitKind.CHILD, children=(OtherProcess(2, "long" * 16),)),
            f"process 2 ({'long' * 15}...) to end",
        ),
        (
            Wait(
                WaitKind.FILE_LOCK,
                descriptors=(PIPE,),
                processes=OUTPUT.other_processes,
            ),
            "a lock on fd 7 (pipe:[9]), held by process 2 (ls), process 3",
        ),
        (Wait(WaitKind.OPEN, path="/x"), "open of /x"),
        (Wait(WaitKind.SLEEP), "sleep"),
        (Wait(WaitKind.SLEEP, is_forever=True), "a wake-up (sleep without end)"),
        (Wait(WaitKind.EXIT), "the other threads to end, as the program exits"),
        (Wait(WaitKind.RACTOR, "Ractor.receive"), "Ractor.receive"),
        (Wait(WaitKind.RACTOR, "Ractor#take", ractor=2), "Ractor#take of ractor 2"),
        (
            Wait(WaitKind.NATIVE_LOCK, "X#y", lock=0x80, holder=Waiter(A)),
            'native lock 0x80, held by "a" (tid 5), in X#y',
        ),
        (
            Wait(WaitKind.SYSTEM_CALL, "X#y", system_call="ioctl"),
            "system call ioctl, in X#y",
        ),
        (Wait(WaitKind.UNKNOWN, "X#y"), "unknown, in X#y"),
        (Wait(WaitKind.UNKNOWN), "unknown"),
    ],
)
def test_words(wait: Wait, text: str) -> None:
    assert wait_text(wait) == text


def test_lines_fit() -> None:
    wait = Wait(
        WaitKind.MUTEX, holder=Waiter(A), object=1, class_name="Thread::Mutex" * 4
    )
    thread = DumpedThread(
        A, ThreadState.SLEEPING, False, "S", None, wait=wait, gvl_waiters=2
    )
    cycle = (Waiter(A), Waiter(B, 0x77, is_suspended=True))
    dump = Dump(1, "ruby", "3.1.2", (thread,), deadlocks=(cycle, cycle[:1]))
    assert list(dump_lines(dump, Style(width=60)))[3:] == [
        '"a" tid 5, sleeping',
        "  holds the GVL; threads that wait for it: 2",
        "  waits for:",
        "    Thread::MutexThread::MutexThread::MutexThread::Mutex",
        '    0x1, held by "a" (tid 5)',
        "    (its stack could not be read)",
        "",
        'deadlock: "a" (tid 5) → suspended fiber 0x77 of thread →',
        '  "a" (tid 5)',
        'deadlock: "a" (tid 5) → "a" (tid 5)',
    ]
