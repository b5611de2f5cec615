"""``calls`` compared with Debian's rbtrace: same program, calls, nesting, and
format."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import Tracer
from processes import LIB, TIMEOUT, Target

PROGRAM = """\
require ARGV.fetch(0)
require "digest"
require "securerandom"

def work
  Digest::SHA256.digest SecureRandom.random_bytes(2**8)
end

work # so that both see a program that is warm
STDOUT.sync = true
puts "ready"
loop do
  # A process that only waits cannot answer rbtrace.
  next unless IO.select([STDIN], nil, nil, 0.01)
  break unless STDIN.gets
  work
  puts "done"
end
"""
"""The article's loop, with one turn per line of input instead of per second."""
OURS = ["--c-calls", "--yes", "--rbtrace-times"]
WORDS = ["-m", "digest", "random_bytes", "gen_random_urandom", "reset", "finish"]


def masked(text: str) -> str:
    return re.sub(r"<\d+\.\d{6}>", "<>", text)


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "trace.rb"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture
def rbtrace(program: str) -> Iterator[str]:
    """Return what rbtrace prints for a turn of the program, without times."""
    check = ["ruby", "-rrbtrace", "-e", "0"]
    if (
        os.geteuid() != 0
        or not shutil.which("rbtrace")
        or subprocess.run(check, capture_output=True, check=False).returncode
    ):
        pytest.skip("no rbtrace here: apt-get install ruby-rbtrace")
    target = Target("ruby", program, "rbtrace")
    tracer = subprocess.Popen(
        ["rbtrace", "-p", str(target.pid), *WORDS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield _settled(target, tracer)
    finally:
        tracer.kill()
        tracer.communicate(timeout=TIMEOUT)
        target.close()


def _settled(target: Target, tracer: subprocess.Popen[bytes]) -> str:
    """Wait until two turns are alike. rbtrace does not report when it has hooked its
    methods."""
    assert tracer.stdout
    assert tracer.stderr
    said = b""
    while b"attached" not in said:
        more = _some(tracer.stderr.fileno(), TIMEOUT)
        if not more:
            pytest.skip(f"rbtrace does not work here: {said.decode()}")
        said += more
    before = ""
    for _ in range(100):
        target.step()
        found = b""
        while more := _some(tracer.stdout.fileno(), 1):
            found += more
        text = masked(found.decode())
        if text and text == before:
            return text
        before = text
    raise AssertionError(f"rbtrace goes on changing: {before}")


def _some(fd: int, seconds: float) -> bytes:
    ready, _, _ = select.select([fd], [], [], seconds)
    return os.read(fd, 65536) if ready else b""


def test_same_as_rbtrace(
    program: str, rbtrace: str, trace: Callable[..., Tracer]
) -> None:
    target = Target("ruby", f"-I{LIB}", program, "tracepoint/agent")
    try:
        tracer = trace("calls", target.pid, *WORDS, *OURS)
        target.step()
        target.step()
        out, err, code = tracer.finish()
    finally:
        target.close()
    assert code == 0, err
    assert masked(out) == rbtrace * 2
