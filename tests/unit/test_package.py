"""Contents of a wheel: all that is used at run time, also by way of an sdist."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from installed import NO_BCC, copy_of_sources
from rbtrace_py.agent import hook
from rbtrace_py.bpf import compiler
from rbtrace_py.cli.main import COMMANDS
from rbtrace_py.errors import BpfError

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "ext" / "agent"
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""
SHIPPED = {
    "rbtrace_py/agent/load.rb": "tracer/rbtrace_py/agent/load.rb",
    "rbtrace_py/agent/first/tracepoint/agent.rb": (
        "tracer/rbtrace_py/agent/first/tracepoint/agent.rb"
    ),
    "rbtrace_py/report/flamegraph/flamegraph.js": (
        "tracer/rbtrace_py/report/flamegraph/flamegraph.js"
    ),
    **{
        f"rbtrace_py/agent/source/{path.relative_to(AGENT)}": path.relative_to(ROOT)
        for kind in ("sources.txt", "agent.*", "agent/*.rb", "hook/*.[ch]")
        for path in AGENT.glob(kind)
    },
}
"""Place in the checkout by the place in the wheel."""
SHARED = {
    "share/man/man1/rbtrace-py.1",
    *(f"share/man/man1/rbtrace-py-{name}.1" for name in COMMANDS),
    "share/bash-completion/completions/rbtrace-py",
    "share/fish/vendor_completions.d/rbtrace-py.fish",
    "share/zsh/site-functions/_rbtrace-py",
}
EXIT = bytes.fromhex("9500000000000000")
"""The instruction at the end of a function in the kernel."""
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
"""The words that run a command as a user who cannot load BPF programs."""
IN_SDIST = (
    *("CHANGELOG.md", "docs/install.md", "tests/conftest.py", "scripts/test.sh"),
    *("ext/libstapsdt/libstapsdt.h", "ruby/lib/tracepoint.rb", "examples/shop/shop.rb"),
    *("gem/tracepoint-usdt.gemspec", "gem/lib/tracepoint.rb", "gem/ext/agent/agent.c"),
)


@pytest.mark.install
def test_without_a_compiler_a_wheel_is_built_and_says_so(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/bin/false")
    leave_old_build(checkout, "agent")
    wheel, said = build("build_wheel", checkout, tmp_path / "out")
    assert "this wheel has no compiled hook" in said
    assert "agent/built/" not in "".join(zipfile.ZipFile(wheel).namelist())


@pytest.mark.install
def test_without_bcc_a_wheel_is_built_and_says_so(
    checkout: Path, tmp_path: Path, root: None
) -> None:
    leave_old_build(checkout, "bpf")
    wheel, said = build("build_wheel", checkout, tmp_path / "out", NO_BCC)
    assert "this wheel has no compiled BPF programs" in said
    assert "bpf/built/" not in "".join(zipfile.ZipFile(wheel).namelist())


def test_no_program_is_kept_unless_all_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[dict[str, int]] = [{}, {"int": 0}]  # the second is not valid C
    programs = [("tracked_pids.c", one) for one in flags]
    monkeypatch.setattr(compiler, "without_filter", lambda: programs)
    with pytest.raises(BpfError, match="cannot compile"):
        compiler.build_into(tmp_path / "built")
    assert not (tmp_path / "built").exists()


def leave_old_build(checkout: Path, layer: str) -> None:
    """Leave an earlier version's build in the same checkout."""
    name = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    folder = checkout / "build" / name / "rbtrace_py" / layer / "built"
    folder.mkdir(parents=True)
    (folder / "old").touch()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout, as building leaves files in it."""
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools")
    return copy_of_sources(tmp_path / "checkout")


def build(
    what: str, folder: Path, output: Path, prefix: Sequence[str] = ()
) -> tuple[Path, str]:
    """Return the built files and the output."""
    output.mkdir(exist_ok=True)
    done = subprocess.run(
        [*prefix, sys.executable, "-c", BUILD, what, str(output)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return output / done.stdout.splitlines()[-1], done.stdout + done.stderr


def check_pages(pages: list[bytes]) -> None:
    """Check that groff has no warning for any page."""
    if shutil.which("groff"):
        for page in pages:
            words = ["groff", "-man", "-Tutf8", "-ww", "-z"]
            done = subprocess.run(words, input=page, capture_output=True)
            assert (done.returncode, done.stderr) == (0, b"")
    latency = next(page for page in pages if b"rbtrace-py\\-latency" in page).decode()
    assert ".nf\nExamples:\n  rbtrace\\-py latency 1234 checkout\n" in latency
    assert "Groups to keep with \\-\\-by; the rest is (other)." in latency


def check_programs(opened: zipfile.ZipFile) -> None:
    """Check that all are there, each a program for the kernel."""
    names = [n for n in opened.namelist() if n.startswith("rbtrace_py/bpf/built/")]
    if not has_bcc():
        assert names == []
        return
    assert len(names) == len(list(compiler.without_filter()))
    for name in names:
        functions = compiler._parse(opened.read(name))
        assert functions
        assert all(EXIT in code for code in functions.values())


def has_bcc() -> bool:
    try:
        compiler.import_bcc()
    except BpfError:
        return False
    return True


def check(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        for inside, outside in SHIPPED.items():
            assert opened.read(inside) == (ROOT / outside).read_bytes()
        built = f"rbtrace_py/agent/built/{hook._key()}.so"
        assert opened.read(built).startswith(b"\x7fELF")
        check_programs(opened)
        names = {name.partition(".data/data/")[2] for name in opened.namelist()}
        assert names >= SHARED
        pages = [name for name in opened.namelist() if name.endswith(".1")]
        check_pages([opened.read(name) for name in pages])
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")


@pytest.mark.install
def test_a_wheel_of_a_checkout(checkout: Path, tmp_path: Path) -> None:
    check(build("build_wheel", checkout, tmp_path / "out")[0])


@pytest.mark.install
def test_a_wheel_of_an_sdist(checkout: Path, tmp_path: Path) -> None:
    sdist, _ = build("build_sdist", checkout, tmp_path / "out")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    for name in IN_SDIST:
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert not list(unpacked.rglob("*.so*"))
    check(build("build_wheel", unpacked, tmp_path / "out", WITHOUT_RIGHTS)[0])
