"""bcc's own list of probes."""

import os
import re

import pytest

from .tools import Target, need, need_root, run

pytestmark = pytest.mark.root


def tplist(pid: int, *options: str) -> str:
    need_root()
    tool = need("tplist-bpfcc")
    return run(tool, *options, "-p", str(pid))


def of(output: str, provider: str) -> list[str]:
    """Return the words after the last slash: tplist prefixes an image's path."""
    return sorted(re.findall(rf"\b{provider}:\w+", output))


def test_probes_are_listed_when_they_are_defined(target: Target) -> None:
    target.tell("define shop checkout 3")
    assert of(tplist(target.pid), "shop") == ["shop:checkout"]
    target.tell("define shop refund 0")
    assert of(tplist(target.pid), "shop") == ["shop:checkout", "shop:refund"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names x86-64 registers")
def test_arguments(target: Target) -> None:
    target.tell("define shop twelve 12")
    output = tplist(target.pid, "-vv")
    found = re.findall(r"argument #(\d+) 8 signed   bytes @ (.*)", output)
    registers = ["di", "si", "dx", "cx", "r8", "r9"]
    stack = [f"*(sp + {offset})" for offset in range(8, 56, 8)]
    places = [place for _, place in found]
    assert places == registers + stack
    assert "shop:twelve [sema 0x0]" in output


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names x86-64 registers")
def test_arguments_of_the_original_interface(target: Target) -> None:
    target.tell("compat")
    output = tplist(target.pid, "-vv")
    found = re.findall(r"argument #\d+ (\d) (\w+)\s+bytes @ (\w+)", output)
    assert found == [
        ("1", "signed", "di"),
        ("1", "unsigned", "si"),
        ("2", "signed", "dx"),
        ("2", "unsigned", "cx"),
        ("4", "signed", "r8"),
        ("8", "unsigned", "r9"),
    ]


def test_both_sides_of_a_fork(target: Target) -> None:
    target.tell("define shop before 1")
    child = target.fork()
    target.tell("define shop in_child 1")
    assert of(tplist(child), "shop") == ["shop:before", "shop:in_child"]
    assert of(tplist(target.pid), "shop") == ["shop:before"]
    assert target.ask("exit") == "parent"
    target.tell("define shop in_parent 1")
    assert of(tplist(target.pid), "shop") == ["shop:before", "shop:in_parent"]
