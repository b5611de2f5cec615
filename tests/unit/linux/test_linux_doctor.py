from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from linux_targets import running

from rbtrace_py.bpf import compiler
from rbtrace_py.bpf import syscall as sys_
from rbtrace_py.errors import (
    BpfError,
    NotPermitted,
    NotRuby,
    RbtraceError,
    UnknownRuby,
    UnreadableMemory,
)
from rbtrace_py.linux.kernel import Kernel, read_kernel
from rbtrace_py.linux.process import Process
from rbtrace_py.model.checks import Check, CheckStatus
from rbtrace_py.session import doctor
from rbtrace_py.session.doctor import checks

ALL = frozenset(wanted for each, _ in doctor._GAINS for wanted in each)
NONE: frozenset[str] = frozenset()


@pytest.fixture
def kernel() -> Kernel:
    return replace(
        read_kernel(),
        release="6.6.1",
        version=(6, 6),
        machine="x86_64",
        perf_event_paranoid=2,
        yama=1,
        lockdown="none",
        tracefs="/sys/kernel/tracing",
    )


def by_name(found: list[Check]) -> dict[str, Check]:
    assert len({check.name for check in found}) == len(found)
    return {check.name: check for check in found}


def test_the_machine() -> None:
    found = by_name(checks())
    names = {"kernel", "rights", "BTF", "bcc", "tracefs", "Yama", "stacks"}
    assert names <= set(found)
    for check in found.values():
        assert check.text
        assert (check.status is CheckStatus.OK) != bool(check.advice), check


@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "check", "where"),
    [("on_switch", "stack walks", "mode wall: "), ("on_hit", "probe programs", "")],
)
def test_a_program_that_the_verifier_refuses(
    root: None, monkeypatch: pytest.MonkeyPatch, name: str, check: str, where: str
) -> None:
    """A kernel that loads simple programs may refuse these."""
    assert by_name(checks())[check].status is CheckStatus.OK
    load = sys_.load_program
    refusal = f"cannot load the BPF program {name}: Permission denied"

    def refuse(kind: int, code: bytes, attach_type: int, loaded: str) -> int:
        if loaded == name:
            raise BpfError(refusal)
        return load(kind, code, attach_type, loaded)

    monkeypatch.setattr(sys_, "load_program", refuse)
    found = by_name(checks())[check]
    assert (found.status, found.text) == (CheckStatus.FAIL, where + refusal)


def test_a_program(target: Path) -> None:
    with running(target) as popen:
        found = by_name(doctor.process_checks(popen.pid))
    assert found[f"process {popen.pid}"].text == f"target, of user {os.geteuid()}"
    assert found["files"].status is CheckStatus.OK
    assert found["memory"].status is CheckStatus.OK
    assert found["Ruby"].status is CheckStatus.WARN
    assert found["Ruby stacks"].status is CheckStatus.WARN
    assert found["gem"].status is CheckStatus.WARN


@pytest.mark.skipif(shutil.which("ruby") is None, reason="needs ruby")
def test_a_ruby() -> None:
    script = "puts 'ready'; $stdout.flush; $stdin.read"
    with running("ruby", "-e", script) as popen:
        found = by_name(checks(popen.pid))
    assert "Ruby" not in found
    stacks = found["Ruby stacks"]
    assert stacks.status is CheckStatus.OK
    assert " and verified in memory" in stacks.text
    assert found["Ruby's probes"].status in (CheckStatus.OK, CheckStatus.WARN)


def test_no_process() -> None:
    (check,) = doctor.process_checks(1 << 22)
    assert (check.status, check.text) == (
        CheckStatus.FAIL,
        f"there is no process {1 << 22}",
    )


def test_kernels(kernel: Kernel) -> None:
    assert doctor._kernel(kernel).status is CheckStatus.OK
    assert doctor._kernel(replace(kernel, version=(5, 4))).status is CheckStatus.FAIL
    assert doctor._kernel(replace(kernel, machine="aarch64")).status is CheckStatus.WARN


def test_rights() -> None:
    assert doctor._rights(ALL).status is CheckStatus.OK
    missing = doctor._rights(NONE)
    assert missing.status is CheckStatus.WARN
    for word in ALL:
        assert word in missing.advice
    one = doctor._rights(ALL - {"CAP_PERFMON"})
    assert "Add CAP_PERFMON for probes" in one.advice
    assert "CAP_BPF" not in one.advice


def test_knobs(kernel: Kernel) -> None:
    assert doctor._perf_events(kernel, ALL).status is CheckStatus.OK
    assert doctor._perf_events(kernel, NONE).status is CheckStatus.WARN
    lenient = replace(kernel, perf_event_paranoid=-1)
    assert doctor._perf_events(lenient, NONE).status is CheckStatus.OK
    absent = replace(kernel, perf_event_paranoid=None)
    assert doctor._perf_events(absent, ALL).status is CheckStatus.WARN
    assert doctor._yama(kernel, ALL).status is CheckStatus.OK
    assert doctor._yama(kernel, NONE).status is CheckStatus.WARN
    assert doctor._yama(replace(kernel, yama=3), ALL).status is CheckStatus.WARN
    assert doctor._yama(replace(kernel, yama=None), NONE).status is CheckStatus.OK
    assert doctor._lockdown(kernel).status is CheckStatus.OK
    locked = replace(kernel, lockdown="confidentiality")
    assert doctor._lockdown(locked).status is CheckStatus.FAIL
    assert doctor._tracefs(replace(kernel, tracefs=None)).status is CheckStatus.WARN


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (None, f"of processes of user {os.geteuid()} (no CAP_SYS_PTRACE)"),
        (0, f"of processes of user {os.geteuid()} (no CAP_SYS_PTRACE)"),
        (1, "only of programs started with `-- COMMAND` (no CAP_SYS_PTRACE)"),
        (2, "of no process (Yama) (no CAP_SYS_PTRACE)"),
        (3, "of no process (Yama)"),
    ],
)
def test_the_processes_whose_stacks_can_be_read(
    kernel: Kernel, scope: int | None, text: str
) -> None:
    check = doctor._reading(replace(kernel, yama=scope), NONE)
    is_all_refused = scope is not None and scope >= 2
    status = CheckStatus.FAIL if is_all_refused else CheckStatus.WARN
    assert (check.status, check.text) == (status, text)
    assert check.advice
    root = doctor._reading(replace(kernel, yama=scope), ALL)
    assert (root.status is CheckStatus.OK) is (scope != 3)


@pytest.mark.parametrize(
    "error",
    [
        UnknownRuby("not known", "do this"),
        UnknownRuby("not known"),
        NotRuby("no Ruby"),
        NotPermitted("no"),
        UnreadableMemory("gone"),
    ],
)
def test_a_ruby_that_cannot_be_read(
    error: RbtraceError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(doctor, "attach", refuse)
    with Process(os.getpid()) as process:
        check = doctor._stacks(process)
    assert (check.status, check.text) == (CheckStatus.WARN, str(error))
    assert check.advice


def test_bpf_without_rights() -> None:
    (check,) = doctor._bpf_features(NONE)
    assert (check.name, check.status) == ("BPF", CheckStatus.WARN)
    assert "CAP_BPF and CAP_PERFMON" in check.text


def test_features_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"ring buffer": True, "uprobe_multi": False, "bpf_loop": False}
    monkeypatch.setattr(doctor, "probe_features", lambda: answer)
    found = list(doctor._bpf_features(ALL))
    statuses = [check.status for check in found]
    assert statuses == [CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL]


def test_features_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise BpfError("no bpf(2)", "do this")

    monkeypatch.setattr(doctor, "probe_features", refuse)
    (check,) = doctor._bpf_features(ALL)
    assert check == Check("BPF", CheckStatus.FAIL, "no bpf(2)", "do this")


def test_no_bcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bcc", raising=False)
    monkeypatch.setattr(compiler, "_DEBIAN_BCC", "/no/such/file")
    monkeypatch.setattr(sys, "path", [])
    check = doctor._bcc()
    assert check.status is CheckStatus.FAIL
    assert "python3-bpfcc" in check.advice


def test_the_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "host_pid_namespace", lambda: False)
    assert doctor._pid_namespace().status is CheckStatus.FAIL
