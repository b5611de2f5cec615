"""Output on a wide, a narrow, and a dumb terminal."""

from __future__ import annotations

import re
import subprocess

import pytest
from terminal import screen, status_lines

from commands import run
from processes import ROOT
from rbtrace_py.report.text import width

pytestmark = pytest.mark.usefixtures("root")


@pytest.mark.parametrize("columns", [80, 40])
def test_waiting_for_a_probe_is_shown(start, terminal, columns):
    target = start("probes/late.rb")
    seen = terminal("count", target.pid, "late:later", "--wait", columns=columns)
    seen.read_until("waiting for late.*Ctrl-C stops")
    seen.type("\x03")
    said, code = seen.finish()
    assert code == 130
    assert [line for line in screen(said) if line] == ["rbtrace-py: interrupted"]
    assert all(width(line) < columns for line in status_lines(said))
    if columns == 80:
        where = f"late:later in pid {target.pid}"
        assert f"waiting for {where} · 1 s, Ctrl-C stops" in status_lines(said)


@pytest.mark.parametrize("columns", [80, 40])
def test_a_quiet_trace_says_so_until_something_comes(start, terminal, columns):
    target = start("probes/late.rb")
    seen = terminal("trace", target.pid, "late:first", columns=columns)
    seen.read_until("waiting for late")
    target.step("fire first 2")
    seen.read_until(r"(late:first[^\r]*\r\n[^\r]*){2}")
    seen.type("\x03")
    said, code = seen.finish()
    assert code == 0
    assert all(width(line) < columns for line in status_lines(said))
    lines = screen(said)
    assert [line for line in lines if "waiting" in line] == []
    assert [line.split()[2] for line in lines[:2]] == ["late:first"] * 2
    assert lines[2] == "2 events"


WAITS = "$asked = Queue.new; $asked.pop"


def test_waiting_for_an_answer_is_shown(start, terminal):
    target = start("inside/agent.rb")
    seen = terminal("eval", target.pid, WAITS)
    seen.read_until("waiting for pid.*Ctrl-C stops")
    assert run("eval", target.pid, "$asked.push(7); nil") == ("nil\n", "", 0)
    said, code = seen.finish()
    assert code == 0
    assert [line for line in screen(said) if line] == [f">> {WAITS}", "=> 7"]
    assert f"waiting for pid {target.pid} · 1 s, Ctrl-C stops" in status_lines(said)


def test_ctrl_c_while_it_waits_for_an_answer(start, terminal):
    target = start("inside/agent.rb")
    seen = terminal("eval", target.pid, "sleep", "--json")
    seen.read_until("waiting for pid")
    seen.type("\x03")
    said, code = seen.finish()
    assert (screen(said), code) == (["rbtrace-py: interrupted", ""], 130)


def test_messages_replace_the_progress_of_a_dump(start, terminal, tmp_path):
    target = start("inside/agent.rb")
    path = tmp_path / "heap.json"
    said, code = terminal("heapdump", target.pid, path).finish()
    first, second, *rest = screen(said)
    assert first.startswith(f"rbtrace-py: a copy of process {target.pid} writes")
    assert second.startswith("  ")
    assert rest == [
        f"rbtrace-py: {path}: the heap of process {target.pid},"
        f" {path.stat().st_size:,} bytes",
        "",
    ]
    assert code == 0


def test_a_note_is_broken_between_words(terminal):
    sleeping = subprocess.Popen(["sleep", "infinity"])
    try:
        said, code = terminal("probes", sleeping.pid, columns=40).finish()
    finally:
        sleeping.kill()
        sleeping.wait()
    assert code == 0
    assert "is not Ruby, as no interpreter is mapped" in " ".join(said.split())
    assert all(width(line) < 40 for line in screen(said)), said


def test_measuring_is_shown(start, terminal):
    target = start("probes/late.rb")
    seen = terminal("count", target.pid, "late:first", columns=40)
    seen.read_until("measuring")
    target.step("fire first 2")
    seen.type("\x03")
    said, code = seen.finish()
    assert code == 0
    assert all(width(line) < 40 for line in status_lines(said))
    assert all(width(line) <= 40 for line in screen(said)), screen(said)
    assert "measuring" not in "".join(screen(said))


def test_how_many_calls_were_folded_is_said_once(start, terminal):
    target = start("methods/calls.rb")
    seen = terminal("stacks", target.pid, "--calls", "--format", "summary")
    seen.read_until("from the agent's hook")
    target.step("trees")
    seen.type("\x03")
    said, code = seen.finish()
    assert code == 0
    shown = screen(said)
    assert sum("no losses" in line for line in shown) == 1, shown
    (counted,) = [line for line in shown if re.search(r"\d calls", line)]
    assert counted.startswith("  ")
    assert any(line.endswith(" tests/targets/methods/calls.rb") for line in shown)


def test_a_report_fits_the_screen(terminal):
    recording = ROOT / "tests/golden/recordings/samples.rbrec"
    said, code = terminal("report", recording, rows=13).finish()
    assert code == 0
    shown = screen(said)
    assert len(shown) <= 13
    assert shown[1] == "% self  % total  name"
    whole, _, _ = run("report", recording)
    assert shown[:3] == whole.splitlines()[:3]
    assert any(re.fullmatch("  . more methods; --rows . shows all", s) for s in shown)
    said, _ = terminal("report", recording, "--rows", 99, rows=13).finish()
    assert [line for line in screen(said) if line] == list(
        filter(None, whole.splitlines())
    )


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_no_colour(start, terminal, env):
    target = start("probes/late.rb")
    words = ("late:first", "-d", "0.5")
    said, code = terminal("count", target.pid, *words, env=env).finish()
    assert code == 0
    assert "\x1b[1m" not in said
    assert ("\x1b" not in said) is ("TERM" in env)


def test_colour(start, terminal):
    target = start("probes/late.rb")
    said, code = terminal("count", target.pid, "late:first", "-d", "0.1").finish()
    assert code == 0
    assert "\x1b[1mlate:first\x1b[m" in said


def test_a_command_of_ours_has_the_terminal_for_itself(root, terminal):
    seen = terminal("count", "no_such_probe", "--", "sleep", "1.5")
    said, code = seen.finish()
    assert code == 4
    assert status_lines(said) == []


@pytest.mark.parametrize("format_", ["summary", "readable", "folded"])
def test_how_well_it_went_is_said_once(start, terminal, format_):
    target = start("stacks/states.rb", "0")
    words = ["--mode", "wall", "-n", 3, "--format", format_]
    said, code = terminal("stacks", target.pid, *words).finish()
    said_of_it = re.findall(r"no losses|late sampling pass(?:es)? \(", said)
    assert (len(said_of_it), code) == (1, 0), said
