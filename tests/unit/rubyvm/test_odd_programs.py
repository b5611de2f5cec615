"""Programs with odd paths, labels, and lines, which are read and named."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from processes import Target
from rbtrace_py.linux.memory import ProcessMemory
from rbtrace_py.linux.process import Process
from rbtrace_py.model.stacks import SampleFlags
from rbtrace_py.rubyvm.attach import attach
from rbtrace_py.rubyvm.vm import RubyVM
from rubies import EACH, command

WAIT = "$stdout.sync = true; puts :ready; $stdin.gets"
NESTED = "1.times { " * 80 + WAIT + " }" * 80
EVALS = {
    "no path": f'eval("def work; {WAIT}; end; work", TOPLEVEL_BINDING, "")',
    "a label as path": f'eval("{WAIT}", TOPLEVEL_BINDING, "<main>")',
    "line 0": f'eval("def work; {WAIT}; end\\nwork", TOPLEVEL_BINDING, "x.rb", 0)',
    "line -5": f'eval("def work; {WAIT}; end\\nwork", TOPLEVEL_BINDING, "x.rb", -5)',
    "compiled": "RubyVM::InstructionSequence.compile("
    f'"def foo; {WAIT}; end; foo", "foo").eval',
    "80 blocks": f"def deep; {NESTED}; end; deep",
}


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("program", EVALS.values(), ids=EVALS)
def test_evals(name: str, program: str, root: None) -> None:
    with closing(Target(*command(name, program))) as target:
        target.wait_until_it_reads()
        lines = frames(target)
        assert lines[-1][0] == "IO#gets"
        assert lines[0][:2] == ("<main>", "-e")
        if program == EVALS["80 blocks"]:
            assert len(lines) == 163
            assert lines[-2][0] == "block (80 levels) in Object#deep"


def test_a_file_that_is_called_as_its_method(
    tmp_path: Path, root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("work").write_text(f"def work\n {WAIT}\nend\nwork\n")
    with closing(Target("ruby", "--disable-gems", "work")) as target:
        target.wait_until_it_reads()
        assert frames(target) == [
            ("<main>", "work", 4),
            ("Object#work", "work", 2),
            ("IO#gets", "work", 2),
        ]


EXTENSION = """
#include <stdio.h>
void Init_waiting(void) {
    puts("ready");
    fflush(stdout);
    getchar();
}
"""


def test_an_extension_that_is_loaded_before_the_program(
    tmp_path: Path, root: None
) -> None:
    """Its frame, which has its path as a label, is all there is: so it is of those that
    each Ruby loads at its start (encdb.so), and there a program may be for long."""
    extension = tmp_path / "waiting.so"
    gcc = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(extension)]
    subprocess.run(gcc, check=True, input=EXTENSION, text=True)
    words = ("--disable-gems", f"-r{extension}", "-e", "")
    with closing(Target("ruby", *words)) as target:
        name, path, _ = frames(target)[-1]
        assert (name, path) == (str(extension), str(extension))


def frames(target: Target) -> list[tuple[str, str, int | None]]:
    target.wait_until_it_reads()
    with Process(target.pid) as process:
        found = attach(process)
        memory = ProcessMemory(target.pid)
        vm = RubyVM(memory, found.layout, found.vm_address, found.symbols_address)
        walked = vm.sample(vm.threads()[0])
    assert walked is not None
    assert walked.flags is SampleFlags.CLEAN
    return [(one.name, one.path, one.line) for one in walked.stack.frames]
