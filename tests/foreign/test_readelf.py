"""binutils and elfutils on a live image."""

import os
import re

import pytest

from .tools import Target, need, run

NOTE = re.compile(
    r"Provider: (\w+)\s+Name: (\w+)\s+Location: (\w+), Base: (\w+), "
    r"Semaphore: (\w+)\s+Arguments: (.*)"
)
X86_64 = "-8@%rdi -8@%rsi -8@%rdx -8@%rcx -8@%r8 -8@%r9 " + " ".join(
    f"-8@{offset}(%rsp)" for offset in range(8, 56, 8)
)


@pytest.fixture
def image(target: Target) -> str:
    target.tell("define shop none 0")
    target.tell("define shop twelve 12")
    (path,) = target.images()
    return path


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names x86-64 registers")
def test_notes(target: Target, image: str) -> None:
    notes = NOTE.findall(run(need("readelf"), "-nW", image, LC_ALL="C"))
    assert [(note[0], note[1], note[5].strip()) for note in notes] == [
        ("shop", "none", ""),
        ("shop", "twelve", X86_64),
    ]
    assert int(notes[1][2], 16) - int(notes[0][2], 16) == 8
    assert {int(note[4], 16) for note in notes} == {0}


def test_base_is_where_the_section_is(image: str) -> None:
    sections = run(need("readelf"), "-SW", image, LC_ALL="C")
    address = re.search(r"\.stapsdt\.base\s+PROGBITS\s+(\w+) (\w+)", sections)
    assert address is not None
    bases = {
        int(note[3], 16)
        for note in NOTE.findall(run(need("readelf"), "-nW", image, LC_ALL="C"))
    }
    assert bases == {int(address[1], 16)} == {int(address[2], 16)}


def test_nothing_is_wrong_with_the_file(image: str) -> None:
    output = run(need("readelf"), "-aW", image, LC_ALL="C")
    assert "Warning" not in output
    assert "Build ID" in output


def test_elfutils_finds_every_probe(image: str) -> None:
    output = run(need("eu-readelf"), "-n", image, LC_ALL="C")
    assert output.count("Provider: shop") == 2
