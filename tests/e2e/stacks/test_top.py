"""``top`` with and without a terminal, on a program with known shares."""

from __future__ import annotations

import os
import re
import signal
import termios

import pytest
from terminal import Terminal

from commands import run
from processes import TARGETS, margin, run_time

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"
SHARES = {"half": 50, "third": 30, "fifth": 20}


@pytest.fixture
def target(start):
    return start("stacks/burning.rb")


def screens(said: str) -> list[list[str]]:
    """Return each drawn screen, without colors."""
    plain = re.sub(r"\x1b\[[\d;]*m|\x1b\[K|\x1b\[J", "", said.partition(LEAVE)[0])
    return [part.replace("\r", "").split("\n") for part in plain.split("\x1b[H")[1:]]


def totals(lines: list[str]) -> dict[str, float]:
    """Return the names and total% of the method rows for the last seconds."""
    rows = [re.match(r" *[\d.<]+ +([\d.]+) .*?#(\w+)", line) for line in lines]
    return {row[2]: float(row[1]) for row in rows if row}


def shares(lines: list[str]) -> dict[str, float]:
    """Return the totals of the methods in SHARES, as parts of the program's CPU."""
    found = totals(lines)
    whole = sum(found[name] for name in SHARES)
    assert whole >= 0.95 * max(found.values())  # of `loop`, which calls them all
    return {name: 100 * found[name] / whole for name in SHARES}


def samples(lines: list[str]) -> int:
    """Return the number of samples of these screens."""
    found = re.findall(r"(?<!\S)([\d,]+) samples", "\n".join(lines))
    return int(found[0].replace(",", ""))


def left(said: str) -> str:
    """Return the output after the screen was left, which must happen exactly once."""
    assert said.count(ENTER) == said.count(LEAVE) == 1
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 1
    return said.partition(LEAVE)[2]


def modes(seen: Terminal) -> list[object]:
    return termios.tcgetattr(seen.master)


@pytest.mark.alone
def test_shares_are_right(target, terminal):
    seen = terminal("top", target.pid, "--rate", "499", "-d", "6")
    said, code = seen.finish()
    assert code == 0
    last = screens(said)[-1]
    assert len(last) == 24
    assert re.match(rf"Ruby \d\.\d+\.\d+, pid {target.pid}: ", last[0])
    found, off = shares(last), margin(samples(last), 4)
    for name, share in SHARES.items():
        assert found[name] == pytest.approx(share, abs=off), last
    (burner,) = [line for line in last if " burner " in line]
    assert " running " in burner
    assert re.search(r"Object#|Process\.|\(changed while read\)", burner), burner
    assert sum(" idle " in line and "sleeping" in line for line in last) == 3
    end = left(said)
    assert "self%  total%  method" in end
    assert re.search(r"no losses|late sampling pass(es)? \(", end)


def test_keys(target, terminal):
    seen = terminal("top", target.pid, "-i", "0.2")
    before = modes(seen)
    seen.read_until(r"T\S* \S*threads")
    assert modes(seen) != before
    seen.type("l")
    seen.read_until(r"burning\.rb:\d+")
    seen.type("?")
    seen.read_until("sort by self")
    seen.type("?T")
    seen.read_until(r"\x1b\[H(?:(?!\x1b\[H|threads:)[\s\S])*c\S* \S*clear\S*\x1b\[K")
    seen.type("t")
    seen.read_until(r"\x1b\[1;4mtotal%")
    seen.type(" ")
    seen.read_until("frozen")
    seen.type("crs")
    seen.read_until(r"\x1b\[1;4mself%")
    seen.type("q")
    said, code = seen.finish()
    assert code == 0
    left(said)
    assert modes(seen) == before


def test_the_terminal_is_given_back(target, terminal):
    """It ends by Ctrl-C, by SIGTERM, and with the target."""
    ends = [
        lambda seen: seen.type("\x03"),
        lambda seen: seen.process.send_signal(signal.SIGTERM),
        lambda seen: os.kill(target.pid, signal.SIGKILL),
    ]
    for number, end in enumerate(ends):
        seen = terminal("top", target.pid, "-i", "0.2")
        before = modes(seen)
        seen.read_until("burner")
        end(seen)
        said, code = seen.finish()
        assert code == 0
        assert (f"process {target.pid} has ended" in left(said)) is (number == 2)
        assert modes(seen) == before


def test_an_error_is_said_on_a_clean_terminal(terminal):
    said, code = terminal("top", 1 << 22).finish()
    assert code == 4
    assert said.startswith(f"rbtrace-py: there is no process {1 << 22}\r\n")
    assert "\x1b" not in said


def test_hanging_up_ends_it(target, terminal):
    seen = terminal("top", target.pid, "-i", "0.2")
    seen.read_until("burner")
    seen.hang_up()


def test_a_resize_draws_anew(target, terminal):
    seen = terminal("top", target.pid, "-i", "30")
    seen.read_until("burner")
    seen.resize(50, 12)
    seen.read_until(r"state {6}cpu%")
    seen.type("q")
    said, code = seen.finish()
    assert code == 0
    last = screens(said)[-1]
    assert len(last) == 12
    assert [line for line in last if len(line) > 50] == []


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(target, terminal):
    """No shell is there to continue it, so the kernel does not stop it."""
    seen = terminal("top", target.pid, "-i", "0.2")
    before = modes(seen)
    seen.read_until("burner")
    seen.type("\x1a")
    seen.read_until(f"(?s){re.escape(LEAVE)}.*{re.escape(ENTER)}.*burner")
    seen.type("q")
    said, code = seen.finish()
    assert code == 0
    assert said.count(ENTER) == said.count(LEAVE) == 2
    assert modes(seen) == before


def test_pausing_is_said(target):
    _, err, code = run("top", target.pid, "--pause", "-d", "0.5")
    assert code == 0
    assert err.startswith("rbtrace-py: the target is paused each time")
    assert re.search(r"paused for \d+\.\d ms in total\n\Z", err)


def test_a_program_of_ours_writes_below(terminal):
    script = (
        "$stdout.sync = true; puts 'ha' * 3; t = Time.now + 1; 0 while Time.now < t"
    )
    said, code = terminal("top", "-i", "0.2", "--", "ruby", "-e", script).finish()
    assert code == 0
    assert "hahaha" not in said.partition(LEAVE)[0]
    assert left(said).startswith("hahaha\r\n")


@pytest.mark.alone
@pytest.mark.parametrize("dumb", [False, True])
def test_lines_without_a_screen(target, terminal, dumb):
    words = ("top", target.pid, "--rate", "499", "-d", "4", "-i", "2", "--rows", "12")
    shown, before = 0.0, run_time(target.pid)
    if dumb:
        said, code = terminal(*words, env={"TERM": "dumb"}).finish()
        out, err = said.replace("\r\n", "\n"), said
    else:
        out, err, code = run(*words)
    ran = (run_time(target.pid) - before) / 1e9
    assert code == 0
    assert "\x1b" not in out
    assert re.search(r"no losses|late sampling pass(es)? \(", err)
    parts = re.split(r"^\d\d:\d\d:\d\d  ", out, flags=re.MULTILINE)[1:]
    assert len(parts) == 2
    for part in parts:
        lines = part.splitlines()
        rate = r"(\d+) of 499 passes/s, [\d,]+ late, 0 failed"
        of_cpu, time, unit, passes = re.fullmatch(
            rf"([\d.]+) % of a CPU, ([\d.]+) (m?s), {rate}", lines[0]
        ).groups()
        seconds = float(time) * {"s": 1, "ms": 1e-3}[unit]
        shown += seconds
        assert seconds == pytest.approx(2 * float(of_cpu) / 100, rel=0.05)
        found, off = shares(lines), margin(int(seconds * float(passes)), 6)
        for name, share in SHARES.items():
            assert found[name] == pytest.approx(share, abs=off), part
    assert 0.6 * ran <= shown <= 1.02 * ran  # it also ran as top began
    # A thousand late rounds are a column more than a line has; a pipe gets all of it.
    rows = [line for line in out.splitlines() if "passes/s" not in line]
    assert max(len(line.replace(str(TARGETS), "")) for line in rows) <= 80


def test_children_join(terminal):
    path = str(TARGETS / "stacks/burning.rb")
    script = f"$stdin.reopen(IO.pipe[0]); fork {{ load {path!r} }}; Process.wait"
    words = (
        "top",
        "--subprocesses",
        "-d",
        "2",
        "-i",
        "0.5",
        "--",
        "ruby",
        "-e",
        script,
    )
    said, code = terminal(*words).finish()
    assert code == 0
    last = screens(said)[-1]
    assert re.match(r"Ruby \d\.\d+\.\d+, 2 processes: ", last[0])
    assert any("burner" in line for line in last)
