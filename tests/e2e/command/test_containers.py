"""docs/containers.md: the abilities of a tracer with few capabilities, by its place.

The target is like a container: it has its own user, in a pid and a mount namespace. A
sidecar is in the same pid namespace, with its own ``/proc``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import run_program
from filtering import OF_BPF, OF_SYS_PTRACE, filtered, like_dockers
from processes import MAIN, Target
from public_copy import PublicCopy
from rbtrace_py.linux.processes import descendants

USER = 54321
PROGRAM = """
require "tracepoint"
SPAN = Tracepoint.define_span(:checkout, {id: Integer}, provider: :shop)
def work = sleep(0.01)
$stdout.sync = true
puts "ready"
1.step { |id| SPAN.measure(id) { work } }
"""
CONTAINER = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
SIDECAR = (
    *("unshare", "--mount", "--fork", "sh", "-c"),
    *('mount -t proc proc /proc; exec "$@"', "sh"),
)
STACKS = "sys_ptrace"
PROBES = "sys_ptrace,bpf,perfmon,dac_read_search"
AGENT = "sys_ptrace,dac_override"
ATTACH = f"{AGENT},setuid,setgid"


@pytest.fixture
def container(root: None, public_copy: PublicCopy) -> Iterator[int]:
    """Return the host's pid of the Ruby in the container."""
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    ruby = ["ruby", f"-I{public_copy.lib}", "-e", PROGRAM]
    target = Target(*CONTAINER, *user, *ruby)
    yield descendants(target.pid)[-1]
    target.close()


def look(
    *words: object,
    caps: str,
    sidecar_of: int | None = None,
    own_filter: bytes | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command as root without other capabilities.

    ``own_filter`` is the seccomp filter of the command.
    """
    kept = f"-all,+{caps.replace(',', ',+')}"
    command = ["setpriv", f"--bounding-set={kept}", f"--inh-caps={kept}"]
    command += [sys.executable, "-c", MAIN, *map(str, words)]
    if own_filter is not None:
        command = list(filtered(own_filter, *command))
    if sidecar_of is not None:
        namespace = f"--pid=/proc/{sidecar_of}/ns/pid"
        command = ["nsenter", namespace, *SIDECAR, *command]
    return run_program(command)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["host", "sidecar"])
def test_what_each_command_needs(place: str, container: int, tmp_path: Path) -> None:
    pid, beside = (container, None) if place == "host" else (1, container)
    for caps, words in (
        (STACKS, ("dump", pid)),
        (STACKS, ("record", pid, "-d", "0.3", "-o", tmp_path / "a.rbrec")),
        (PROBES, ("latency", pid, "checkout", "-d", "0.3")),
        (PROBES, ("trace", pid, "checkout", "-n", "2")),
        (ATTACH, ("attach", pid)),
        (AGENT, ("calls", pid, "-n", "2")),
        (AGENT, ("latency", pid, "method", "-d", "0.3")),
        (AGENT, ("eval", pid, "1 + 1")),
        (AGENT, ("detach", pid)),
    ):
        done = look(*words, caps=caps, sidecar_of=beside)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "caps", "code"),
    [
        (("dump",), "bpf,perfmon,dac_read_search", 3),
        (("count", "checkout", "-d", "0.3"), STACKS, 3),
        (("attach",), STACKS, 3),
    ],
)
def test_without_them(
    words: tuple[str, ...], caps: str, code: int, container: int
) -> None:
    verb, *rest = words
    done = look(verb, container, *rest, caps=caps)
    assert (done.returncode, done.stdout) == (code, "")


def test_messages_without_access_to_the_targets_files(container: int) -> None:
    """It never claims that the target has no probes, and never blames another cause."""
    done = look("count", container, "checkout", caps="sys_ptrace,bpf,perfmon")
    assert "has not defined one yet" not in done.stderr
    assert "CAP_DAC_READ_SEARCH" in done.stderr
    done = look("eval", container, "1", caps=STACKS)
    assert "no agent" not in done.stderr
    assert "CAP_DAC_OVERRIDE" in done.stderr
    done = look("attach", container, caps=STACKS)
    assert "security module" not in done.stderr
    assert "CAP_DAC_OVERRIDE" in done.stderr


def test_several_processes_from_a_sidecar(container: int) -> None:
    """The kernel knows them by the host's pids, which the sidecar cannot see."""
    words = ("count", 1, "checkout", "--subprocesses", "-d", "0.3")
    done = look(*words, caps=PROBES, sidecar_of=container)
    assert (done.returncode, done.stdout) == (1, "")
    assert "hostPID: true" in " ".join(done.stderr.split())
    on_host = look("count", container, *words[2:], caps=PROBES)
    assert on_host.returncode == 0, on_host.stderr
    assert "shop:checkout" in on_host.stdout


def test_where_a_filter_forbids_bpf(container: int) -> None:
    """Podman 4's default filter allows bpf only with CAP_SYS_ADMIN."""
    words, caps = (
        ("count", container, "checkout", "-d", "0.3"),
        f"{PROBES},dac_override",
    )
    done = look(*words, caps=caps, own_filter=like_dockers(OF_SYS_PTRACE))
    assert (done.returncode, done.stdout) == (3, "")
    said = " ".join(done.stderr.split())
    assert "the seccomp filter of this container forbids it" in said
    assert "Podman 4" in said
    allowed = like_dockers((*OF_SYS_PTRACE, *OF_BPF))
    done = look(*words, caps=caps, own_filter=allowed)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [("--engine", "bpf"), ("--on", "raise"), ("--mode", "offcpu")]
)
def test_stacks_by_bpf_from_a_sidecar(words: tuple[str, ...], container: int) -> None:
    done = look("stacks", 1, *words, "-d", "0.3", caps=PROBES, sidecar_of=container)
    assert (done.returncode, done.stdout) == (1, "")
    assert "hostPID: true" in " ".join(done.stderr.split())
