"""A wheel and a folder in empty virtual environments, as ``pip install`` makes them.

Their dependencies come from the package registry, as for a user.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Tracer, answer
from installed import NO_BCC, Environment, copy_of_sources, pythons
from processes import LIB, ROOT, TARGETS, Target

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]

SWITCHES = """
from rbtrace_py.bpf.context_switches import ContextSwitches
ContextSwitches().close()
"""
EVENTS = 23
"""Hits of each probe, at each step of targets/probes/workload.rb."""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with this checkout's wheel and the packages that it and its build
    need."""
    folder = tmp_path_factory.mktemp("wheels")
    maker = Environment(folder / "venv", pythons()[0])
    project = (ROOT / "pyproject.toml").read_text()
    found = re.search(r"^requires = (\[.*\])$", project, re.MULTILINE)
    assert found is not None
    sources = copy_of_sources(folder / "sources")
    words = ["wheel", "--quiet", "--wheel-dir", folder, sources]
    maker.pip(*words, *ast.literal_eval(found[1]))
    return folder


@pytest.fixture(scope="module", params=pythons(), ids=str)
def installed(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    wheels: Path,
) -> Environment:
    """The wheel for one Python, and the folder itself for the other."""
    folder = tmp_path_factory.mktemp("install")
    made = Environment(folder / "venv", request.param)
    if request.param == pythons()[0]:
        (what,) = wheels.glob("rbtrace_py-*.whl")
    else:
        what = copy_of_sources(folder / "sources")
    made.pip("install", "--quiet", "--no-index", "--find-links", wheels, what)
    return made


@pytest.fixture
def target() -> Iterator[Target]:
    started = Target("ruby", f"-I{LIB}", str(TARGETS / "probes/late.rb"))
    yield started
    started.close()


def test_stacks_without_bcc(
    installed: Environment, target: Target, root: None, tmp_path: Path
) -> None:
    recording = tmp_path / "a.rbrec"
    for words in (
        ("dump", target.pid),
        ("top", target.pid, "-d", "0.3"),
        ("stacks", target.pid, "-d", "0.3", "--mode", "wall"),
        ("record", target.pid, "-d", "0.3", "--mode", "wall", "-o", recording),
        ("report", recording),
    ):
        done = subprocess.run(
            list(map(str, [*NO_BCC, installed.command, *words])),
            capture_output=True,
            text=True,
            timeout=60,
            env=installed.env,
            cwd="/",
        )
        assert done.returncode == 0, (words, done.stderr)
        assert "Compiler Collection" not in done.stderr


@pytest.fixture
def workload() -> Iterator[Target]:
    started = Target("ruby", f"-I{LIB}", str(TARGETS / "probes/workload.rb"))
    yield started
    started.close()


@pytest.mark.parametrize(
    ("words", "probes"),
    [
        (("count", "item"), 1),
        (("count", "load:*"), 5),
        (("count", "item", "--by", "id"), 1),
        (("count", "item", "--by", "kind", "--subprocesses"), 1),
        (("latency", "work"), 1),
        (("latency", "load:wor*"), 1),
        (("latency", "work", "--by", "id"), 1),
        (("latency", "work", "--by", "kind"), 1),
        (("latency", "pair_begin..pair_end"), 1),
        (("latency", "pair_begin..pair_end", "load:wor*"), 2),
        (("latency", "pair_begin..pair_end", "--by", "id"), 1),
        (("latency", "pair_begin..pair_end", "--by", "kind"), 1),
        (("values", "item", "id"), 1),
        (("values", "item", "id", "--by", "tid"), 1),
        (("values", "item", "id", "--by", "kind"), 1),
        (("values", "item", "price"), 1),
        (("values", "item", "price", "--by", "tid"), 1),
        (("values", "item", "price", "--by", "kind"), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_probes_without_bcc(
    installed: Environment,
    workload: Target,
    root: None,
    words: tuple[str, ...],
    probes: int,
) -> None:
    document = answer(without_bcc(installed, workload, words))
    assert sum(group["count"] for group in document["groups"]) == EVENTS * probes


@pytest.mark.parametrize("attach", ["multi", "perf"])
def test_events_without_bcc(
    installed: Environment, workload: Target, root: None, attach: str
) -> None:
    words = ("trace", "load:*")
    out, err, code = without_bcc(installed, workload, words, attach).finish()
    assert code == 0, err
    assert sum('"probe"' in line for line in out.splitlines()) == EVENTS * 5


@pytest.mark.parametrize("attach", ["multi", "perf"])
@pytest.mark.parametrize("event", ["load:item", "syscall:write"])
def test_stacks_at_events_without_bcc(
    installed: Environment, workload: Target, root: None, event: str, attach: str
) -> None:
    words = ("stacks", "--on", event)
    form = ("--format", "json")
    document = answer(without_bcc(installed, workload, words, attach, form))
    assert document["counters"]["samples"] == document["weight"]
    if event == "load:item":
        assert document["weight"] == EVENTS
    else:  # it answers and wakes threads
        assert document["weight"] >= 1


def without_bcc(
    installed: Environment,
    target: Target,
    words: tuple[str, ...],
    attach: str = "multi",
    form: tuple[str, ...] = ("--json",),
) -> Tracer:
    """A command that has seen all of one step, and has never been run before."""
    env = {"PYTHONPATH": "", "RBTRACE_CACHE_DIR": "", "RBTRACE_ATTACH": attach}
    verb, *rest = words
    tracer = Tracer(
        *(verb, str(target.pid), *rest, *form),
        env=env,
        command=[*NO_BCC, str(installed.command)],
    )
    assert target.step() == "done"
    return tracer


def test_the_schedulers_switches_without_bcc(
    installed: Environment, root: None
) -> None:
    done = subprocess.run(
        [*NO_BCC, str(installed.folder / "bin" / "python"), "-c", SWITCHES],
        capture_output=True,
        text=True,
        env={**installed.env, "RBTRACE_CACHE_DIR": ""},
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_filter_without_bcc(
    installed: Environment, target: Target, root: None
) -> None:
    words = ["count", str(target.pid), "late:first", "--filter", "n > 0"]
    done = subprocess.run(
        [*NO_BCC, str(installed.command), *words],
        capture_output=True,
        text=True,
        env={**installed.env, "RBTRACE_CACHE_DIR": ""},
        cwd="/",
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Compiler Collection, cannot be loaded" in done.stderr
    assert "apt-get install python3-bpfcc" in done.stderr
    assert "or do without --filter" in " ".join(done.stderr.split())


def test_a_filter_is_compiled_by_the_distributions_bcc(
    installed: Environment, target: Target, root: None
) -> None:
    done = installed.run(
        *("count", target.pid, "late:first", "--filter", "pid > 0", "-d", "0.3"),
        env={"RBTRACE_CACHE_DIR": ""},
    )
    assert "late:first" in done.stdout
    assert "✓ bcc" in installed.run("doctor").stdout


WORKING = """
def work = sleep(0.01)
puts "ready"
$stdout.flush
loop { work }
"""


def test_the_agent_needs_no_compiler(
    installed: Environment, root: None, tmp_path: Path
) -> None:
    """This PATH has no compiler, and no hook was built before."""
    bare = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    target = Target("ruby", "-e", WORKING)
    try:
        installed.run("attach", target.pid, env=bare)
        words = ("calls", target.pid, "-m", "Object#work", "-n", "3")
        done = installed.run(*words, env=bare)
        assert done.stdout.count("Object#work") >= 3
        installed.run("detach", target.pid, env=bare)
    finally:
        target.close()
    assert not list(tmp_path.glob("rbtrace-py/agent/*"))


def test_its_man_pages_and_completion(installed: Environment) -> None:
    share = installed.folder / "share"
    assert len(list((share / "man" / "man1").glob("rbtrace-py*.1"))) > 20
    script = share / "bash-completion" / "completions" / "rbtrace-py"
    assert f"{script.read_text()}\n" == installed.run("completion", "bash").stdout


def test_the_command_to_type(installed: Environment, target: Target) -> None:
    """A virtual environment's folder is not on sudo's PATH."""
    # As root's own Python, it may read other users' files, and nothing else.
    caps = "=-all,+dac_read_search"
    nobody = ["setpriv", "--reuid=65534", "--clear-groups"]
    nobody += [f"--inh-caps{caps}", f"--ambient-caps{caps}"]
    done = subprocess.run(
        [*nobody, str(installed.command), "dump", str(target.pid)],
        capture_output=True,
        text=True,
        env=installed.env,
        cwd="/",
    )
    assert (done.returncode, done.stdout) == (3, "")
    last = done.stderr.splitlines()[-1]
    assert last == f"  sudo {installed.command} dump {target.pid}"
