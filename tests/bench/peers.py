"""Trace all calls of a process with another tool, through our agent in the process.

    python tests/bench/peers.py PID ruby-prof|rbtrace

It ends by SIGINT and writes "attached" to RBTRACE_READY_FD, as the commands do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rbtrace_py.library.inside import eval as run_inside


@contextmanager
def ruby_prof(pid: int) -> Iterator[None]:
    run_inside(
        pid, "require 'ruby-prof'; ($profile = RubyProf::Profile.new).start; nil"
    )
    yield
    run_inside(pid, "$profile.stop; $profile = nil")


@contextmanager
def rbtrace(pid: int) -> Iterator[None]:
    run_inside(pid, "require 'rbtrace'; nil")
    words = ["rbtrace", "-p", str(pid), "--firehose"]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(words, stdout=nothing, stderr=pipe) as process:
        assert process.stderr
        assert b"attached" in process.stderr.readline()
        yield
        process.send_signal(signal.SIGINT)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    peer = {"ruby-prof": ruby_prof, "rbtrace": rbtrace}[sys.argv[2]]
    with peer(int(sys.argv[1])):
        with os.fdopen(int(os.environ["RBTRACE_READY_FD"]), "w") as ready:
            ready.write("attached\n")
        signal.sigwait({signal.SIGINT})


main()
