"""Targets of every kind: by name, by command, in namespaces, and in a chroot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import COMMAND, Tracer, answer, by_key, if_ruby_has, run, run_program
from installed import NO_BCC
from processes import LIB, MAIN, ROOT, TARGETS, Target, read_line
from rbtrace_py.session.probes.filters import check_syntax

LIMITED = """
import resource
from rbtrace_py.linux import locked_memory
from rbtrace_py.session.targets.targets import Targets
which = resource.RLIMIT_MEMLOCK
hard = resource.getrlimit(which)[1]
resource.RLIM_INFINITY = hard
resource.setrlimit(which, (1 << 14, hard))
for _ in range(2):
    assert locked_memory.raise_limit()
    assert resource.getrlimit(which) == (hard, hard)
    targets = Targets.from_command(["sleep", "60"])
    inherited = resource.prlimit(targets.pids[0], which)
    targets.close()
    assert inherited == (1 << 14, hard)
"""
"""Raise the limit and start a program, twice. The hard limit stands for no limit,
which needs a right that a container may lack.
"""
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def host_pid(target):
    """Return the host's pid of the Ruby that ``unshare`` started."""
    children = f"/proc/{target.pid}/task/{target.pid}/children"
    return int(Path(children).read_text().split()[0])


def test_in_other_mount_and_pid_namespaces(trace):
    """The commands take the host's pid, even if the target has a different /proc."""
    command = ["ruby", f"-I{LIB}", str(TARGETS / "probes/workload.rb")]
    target = Target(*UNSHARE, *command)
    try:
        pid = host_pid(target)
        tracer = trace("latency", pid, "work", *if_ruby_has("gc"), "--json")
        target.step()
        document = answer(tracer)
        counts = {g["series"]: g["count"] for g in document["groups"]}
        assert counts["load:work"] == 23
        assert set(counts) == {"load:work", *if_ruby_has("gc")}
    finally:
        target.close()


def counts_a_step(target, trace):
    """Count the gem's probes and, if there are any, Ruby's own."""
    own = if_ruby_has("array__create")
    tracer = trace("count", target.pid, "item", *own, "--json")
    target.step()
    counts = {g["series"]: g["count"] for g in answer(tracer)["groups"]}
    assert counts["load:item"] == 23
    assert not own or counts["ruby:array__create"] > 0


def test_in_a_mount_namespace_that_hides_its_files(trace, tmp_path):
    """The library is found, although its path names another file for us."""
    hidden = tmp_path / "lib"
    hidden.mkdir()
    program = TARGETS / "probes/workload.rb"
    script = f"mount --bind {LIB} {hidden} && exec ruby -I{hidden} {program}"
    target = Target("unshare", "--mount", "sh", "-c", script)
    try:
        counts_a_step(target, trace)
    finally:
        target.close()


def test_in_a_chroot(trace, tmp_path):
    """The root consists of bind mounts in a mount namespace that ends with it."""
    base = tmp_path / "root"
    binds = ["usr", "lib", "lib64", "bin", "etc", "dev", "proc", "var"]
    there = [name for name in binds if Path("/", name).exists()]
    script = [f"mkdir -p {base}/tmp {base}/src"]
    for name in there:
        script.append(f"mkdir -p {base}/{name} && mount --rbind /{name} {base}/{name}")
    script.append(f"mount --bind {ROOT} {base}/src")
    inside = "exec ruby -I/src/ruby/lib /src/tests/targets/probes/workload.rb"
    script.append(f"exec chroot {base} sh -c '{inside}'")
    target = Target("unshare", "--mount", "sh", "-ec", "\n".join(script))
    try:
        counts_a_step(target, trace)
    finally:
        target.close()


def test_by_its_command_line(start, trace):
    target = start("probes/late.rb", "a-name-of-its-own-7251")
    tracer = trace("count", "--ps", "own-7251", "late:first", "--json")
    target.step("fire first 4")
    assert by_key(answer(tracer)) == {None: 4}


def test_a_ruby_goes_before_what_else_matches(start, root):
    """Others are a shell, an editor, and a tail of the log."""
    target = start("probes/late.rb", "mixed-4417")
    shell = Target("sh", "-c", "echo ready; read line; : mixed-4417")
    try:
        out, err, code = run("probes", "--ps", "mixed-4417", "late:first")
        assert (code, "first" in out) == (0, True), err
        said = f"2 processes match; {target.pid} is the only one running Ruby: "
        assert said in " ".join(err.split())
    finally:
        shell.close()


def test_several_that_match_are_listed(start, root):
    targets = [start("probes/late.rb", "twin-9933") for _ in range(2)]
    out, err, code = run("probes", "--ps", "twin-9933")
    assert (out, code) == ("", 2)
    assert all(str(target.pid) in err for target in targets)


def test_of_a_parent_and_its_children_the_parent_is_named(start, root):
    parent = start("probes/preforking.rb", "family-3318")
    out, err, code = run("probes", "--ps", "family-3318")
    assert (out, code) == ("", 2)
    assert err.splitlines()[-3:] == [
        f"  {parent.pid} is the parent of the others",
        "  Add --subprocesses for all of them",
        "  Give PIDs (PID,PID), or a more specific REGEX",
    ]
    out, err, code = run("probes", "--subprocesses", "--ps", "family-3318")
    assert (code, "parent_after" in out) == (0, True), err


def test_a_command_of_our_own(root):
    code = (
        'require "tracepoint"; P = Tracepoint.define(:tick, {n: Integer});'
        "until P.enabled?; end; 5.times { |n| P.fire(n) }"
    )
    out, err, status = run(
        "count", "tick", "--json", "--", "ruby", f"-I{LIB}", "-e", code
    )
    assert status == 0, err
    assert by_key(json.loads(out)) == {None: 5}


def test_the_command_runs_as_who_called_sudo(root, tmp_path, public_copy):
    os.chmod(tmp_path, 0o777)
    code = (
        'require "tracepoint"; P = Tracepoint.define(:tick, {uid: Integer});'
        "until P.enabled?; end; P.fire(Process.uid)"
    )
    env = {"SUDO_UID": "65534", "SUDO_GID": "65534"}
    command = ["ruby", f"-I{public_copy.lib}", "-e", code]
    out, err, status = run(
        "count", "tick", "--by", "uid", "--json", "--", *command, env=env
    )
    assert status == 0, err
    assert by_key(json.loads(out)) == {65534: 1}


def test_a_process_that_is_not_ruby(root):
    """Probes work in any process: these are the C library's."""
    code = (
        f"import ctypes, sys; l = ctypes.CDLL('{ROOT}/ext/libstapsdt/libstapsdt.so');"
        "l.providerInit.restype = ctypes.c_void_p;"
        "l.providerAddProbe.restype = ctypes.c_void_p;"
        "p = ctypes.c_void_p(l.providerInit(b'snake'));"
        "q = ctypes.c_void_p(l.providerAddProbe(p, b'bite', 2, -4, 8));"
        "l.providerLoad(p); print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    l.probeFire(q, ctypes.c_uint64(2**64 - 7), ctypes.c_uint64(9))\n"
        "    print('done', flush=True)"
    )
    target = Target("/usr/bin/python3", "-c", code)
    try:
        out, _, status = run("probes", target.pid, "snake:*", "--json")
        (probe,) = json.loads(out)["probes"]
        assert status == 0
        assert [each["name"] for each in probe["arguments"]] == ["arg0", "arg1"]
        tracer = Tracer("count", str(target.pid), "bite", "--by", "arg0", "--json")
        target.step()
        assert by_key(answer(tracer)) == {-7: 1}
    finally:
        target.close()


def test_no_such_process():
    process = subprocess.Popen(["true"])
    process.wait()
    out, err, code = run("count", process.pid, "x")
    assert (out, code) == ("", 4)
    assert str(process.pid) in err


def test_a_thread_is_not_a_process(start):
    target = start("probes/busy.rb")
    tids = os.listdir(f"/proc/{target.pid}/task")
    tid = next(tid for tid in tids if tid != str(target.pid))
    out, err, code = run("probes", tid)
    assert (out, code) == ("", 4)
    assert str(target.pid) in err


@pytest.mark.parametrize("words", [["count"], ["count", "abc", "x"], ["nonsense"]])
def test_words_that_make_no_sense(words):
    out, err, code = run(*words)
    assert (out, code) == ("", 2)
    assert err


def test_without_root_it_says_what_is_missing(start, root, public_copy):
    target = start("probes/late.rb")
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all"]
    done = subprocess.run(
        [*nobody, *public_copy.command("count", target.pid, "late:first")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**public_copy.env, "RBTRACE_CACHE_DIR": ""},
    )
    assert done.returncode == 3
    assert "not permitted" in done.stderr.lower() or "root" in done.stderr
    *_, last = done.stderr.splitlines()
    program = Path(sys.executable).resolve().with_name("rbtrace-py")
    assert last == f"  sudo {program} count {target.pid} late:first"


def test_a_kernel_thread():
    out, err, code = run("probes", 2)
    assert (out, code) == ("", 4)
    assert err


def test_output_to_a_file_and_a_closed_pipe(start, trace, tmp_path):
    target = start("probes/late.rb")
    path = tmp_path / "out.json"
    tracer = trace("count", target.pid, "late:first", "--json", "-o", path)
    target.step("fire first 2")
    out, err, code = tracer.finish()
    assert (out, code) == ("", 0)
    assert json.loads(path.read_text())["count"] == 2
    _, err, code = run("count", target.pid, "late:first", "-o", tmp_path / "no" / "x")
    assert code == 1
    assert "cannot write" in err


def test_the_first_line_of_a_process_is_waited_for(start):
    """This tests the harness: a target answers each step."""
    target = start("probes/late.rb")
    target.tell("fire first 2")
    assert read_line(target.process.stdout) == "done 0"


WITHOUT_BCC = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs none /usr/lib/python3/dist-packages/bcc && exec "$@"',
    "sh",
)
"""Debian's bcc is found there with any Python."""


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "not installed"),
        ({"bcc.py": ""}, "bcc.py is PyPI's bcc, a different program"),
        ({"bcc/__init__.py": "print(1)"}, "__init__.py is PyPI's bcc"),
        (
            {
                "bcc/__init__.py": "from . import libbcc",
                "bcc/libbcc.py": "raise OSError('libbcc.so.0 is missing')",
            },
            "libbcc.so.0 is missing",
        ),
    ],
)
def test_without_bcc(start, root, tmp_path, files, said):
    """bcc is missing, broken, or the other package of this name."""
    target = start("probes/late.rb")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    words = [sys.executable, "-c", MAIN, "count", str(target.pid), "late:first"]
    path = f"{tmp_path}:{ROOT}/tracer"
    done = subprocess.run(
        [*WITHOUT_BCC, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path, "RBTRACE_CACHE_DIR": ""},
    )
    assert (done.stdout, done.returncode) == ("", 1)
    assert said in " ".join(done.stderr.split())
    assert "apt-get install python3-bpfcc" in done.stderr
    assert target.step("enabled") == "done [false]"


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("-all", "CAP_BPF and CAP_PERFMON"),
        ("-sys_admin,-bpf", "with CAP_BPF;"),
        ("-sys_admin,-perfmon", "with CAP_PERFMON;"),
    ],
)
def test_root_without_its_rights(start, root, taken, said):
    """A container's root has uid 0, but the kernel refuses."""
    target = start("probes/late.rb")
    bare = ["setpriv", f"--bounding-set={taken}", f"--inh-caps={taken}"]
    words = [sys.executable, "-c", MAIN, "count", str(target.pid), "late:first"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/tracer"}
    done = subprocess.run(
        [*bare, *words], capture_output=True, text=True, timeout=60, env=env
    )
    assert (done.stdout, done.returncode) == ("", 3)
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["count", "tick", "--filter", "id > "], "expected a name or a constant", 2),
        (["count", "tick", "--filter", "id > 3 and (n == 1"], "not closed", 2),
        (["latency", "a..b*"], "a pair consists of two names", 2),
        (["latency"], "span or pair of probes", 2),
        (["values", "tick"], "missing arguments: a probe and the name of one", 2),
    ],
)
def test_a_command_is_not_started_in_vain(root, tmp_path, words, said, code):
    sign = tmp_path / "started"
    _, err, status = run(*words, "--", "touch", sign)
    assert (status, sign.exists()) == (code, False)
    assert said in err


def test_a_command_is_not_started_without_rights(root, tmp_path):
    sign = tmp_path / "started"
    taken = "-sys_admin,-bpf,-perfmon"
    bare = ["setpriv", f"--bounding-set={taken}", f"--inh-caps={taken}"]
    words = [sys.executable, "-c", MAIN, "count", "tick", "--", "touch", str(sign)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/tracer"}
    done = subprocess.run(
        [*bare, *words], capture_output=True, text=True, timeout=60, env=env
    )
    assert (done.stdout, done.returncode, sign.exists()) == ("", 3, False)
    assert "CAP_BPF" in done.stderr


def test_a_command_is_not_started_for_a_filter_without_bcc(root, tmp_path):
    sign = tmp_path / "started"
    words = ["count", "tick", "--filter", "id > 1", "--", "touch", str(sign)]
    done = run_program([*NO_BCC, *COMMAND, *words])
    assert (done.stdout, done.returncode, sign.exists()) == ("", 1, False)
    assert "bcc, the BPF Compiler Collection, cannot be loaded" in done.stderr


def test_a_command_has_the_limit_of_locked_memory_that_we_had():
    """On old kernels, rbtrace-py raises its limit for BPF maps."""
    words = [sys.executable, "-c", LIMITED]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/tracer"}
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_that_is_not_there(root):
    _, err, code = run("count", "tick", "--", "/no/such/program")
    assert (code, "cannot run /no/such/program" in err) == (2, True)


@pytest.mark.parametrize(
    "text", ["id > 10", "gift", "not (a == nil or b ^= 'x')", "3 < n and t_ns > 5ms"]
)
def test_a_filter_of_unknown_operands_may_be_right(text):
    check_syntax(text)
