"""Structs that the BPF programs and Python share."""

from __future__ import annotations

import pytest

from rbtrace_py.bpf import abi
from rbtrace_py.bpf.compiler import compile_program
from rbtrace_py.errors import BpfError


@pytest.mark.parametrize("number", ["SIZE_switch_record", "OFFSET_switch_record_cpu"])
def test_structs_that_differ_do_not_compile(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = abi.SWITCH_RECORD.definitions
    monkeypatch.setitem(definitions, number, definitions[number] + 4)
    with pytest.raises(BpfError, match="bcc cannot compile"):
        compile_program("switches.c", {})
    monkeypatch.undo()
    assert compile_program("switches.c", {})
