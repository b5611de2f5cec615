"""The names of the library: typed, and each with a docstring of one form."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import rbtrace_py
import script_modules

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = [
    name for name in rbtrace_py.__all__ if inspect.isfunction(getattr(rbtrace_py, name))
]
CLASSES = [
    name for name in rbtrace_py.__all__ if inspect.isclass(getattr(rbtrace_py, name))
]


def test_a_users_program_has_types(tmp_path: Path) -> None:
    words = ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path)]
    words += ["--config-file", "", "--python-version", "3.10"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "tests/targets/probes/typed_user.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"MYPYPATH": "tracer", "PATH": ""},
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_docstring_of_a_function_has_all_arguments(name: str) -> None:
    function = getattr(rbtrace_py, name)
    text = inspect.getdoc(function) or ""
    first = text.splitlines()[0]
    assert first.endswith(".")
    arguments = text.partition("\nArgs:\n")[2].partition("\n\n")[0].splitlines()
    named = [line.strip().partition(":")[0] for line in arguments if line[4] != " "]
    parameters = inspect.signature(function).parameters.values()
    assert named == [str(each).partition(":")[0].strip() for each in parameters]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(rbtrace_py, name))


def test_the_reference_is_current() -> None:
    """If not, run scripts/gen_library_docs.py."""
    generator = script_modules.load("gen_library_docs")
    assert generator.documented() == set(generator.ORDER)
    assert (ROOT / "docs" / "library-reference.md").read_text() == generator.page()
