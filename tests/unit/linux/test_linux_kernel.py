from __future__ import annotations

import os

import pytest
from linux_targets import is_root

from rbtrace_py.linux import kernel as module
from rbtrace_py.linux.kernel import (
    effective_capabilities,
    missing_for_bpf,
    parse_version,
    read_kernel,
    tracefs,
)


def test_the_running_kernel() -> None:
    kernel = read_kernel()
    assert kernel.release == os.uname().release
    assert kernel.version >= (3, 0)
    assert kernel.machine == os.uname().machine
    assert kernel.lockdown in (None, "none", "integrity", "confidentiality")


def test_versions() -> None:
    assert parse_version("6.18.44-fc") == (6, 18)
    assert parse_version("5.10") == (5, 10)
    assert parse_version("odd") == (0, 0)


def test_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "read_text", lambda *_: f"CapPrm: 0\nCapEff:\t{1 << 39 | 1 << 19:016x}"
    )
    assert effective_capabilities() == {"CAP_BPF", "CAP_SYS_PTRACE"}
    assert missing_for_bpf(effective_capabilities()) == "CAP_PERFMON"
    assert not missing_for_bpf(frozenset({"CAP_BPF", "CAP_PERFMON"}))
    monkeypatch.setattr(module, "read_text", lambda *_: f"CapEff:\t{1 << 21:016x}")
    assert not missing_for_bpf()
    monkeypatch.setattr(module, "read_text", lambda *_: None)
    assert effective_capabilities() == frozenset()


@pytest.mark.skipif(is_root(), reason="is about users without rights")
def test_users_have_none() -> None:
    assert effective_capabilities() == frozenset()


def test_tracefs(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = "sysfs /sys sysfs rw 0 0\ntracefs /sys/kernel/tracing tracefs rw 0 0"
    monkeypatch.setattr(module, "read_text", lambda *_: mounts)
    assert tracefs() == "/sys/kernel/tracing"
    monkeypatch.setattr(module, "read_text", lambda *_: None)
    assert tracefs() is None


def test_lockdown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "none integrity [confidentiality]"
    monkeypatch.setattr(module, "read_text", lambda *_: text)
    assert module._lockdown() == "confidentiality"
