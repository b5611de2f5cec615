"""Build the generated parts of a wheel; pyproject.toml declares the rest.

The agent's hook is compiled, so that a machine without a compiler can attach. The BPF
programs are compiled, so that a machine without bcc can trace. The wheel also includes
their sources, for other kinds of machines and for filters. Man pages and completion are
generated from the commands' help.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "tracer"), str(HERE / "scripts")]

from rbtrace_py.agent import hook  # noqa: E402
from rbtrace_py.bpf import compiler  # noqa: E402
from rbtrace_py.errors import RbtraceError  # noqa: E402

COMPLETION = {
    "bash": "bash-completion/completions/rbtrace-py",
    "fish": "fish/vendor_completions.d/rbtrace-py.fish",
    "zsh": "zsh/site-functions/_rbtrace-py",
}
"""Path in the folder share where each shell searches for completion."""


class Build(build_py):
    """Build the package with its generated parts."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "rbtrace_py"
        hook_folder = package / "agent" / hook.BUILT.name
        programs_folder = package / "bpf" / compiler.BUILT.name
        for folder in (hook_folder, programs_folder):  # of an earlier build
            shutil.rmtree(folder, ignore_errors=True)
        try:
            hook.build_into(hook_folder)
        except RbtraceError as error:
            self.warn(f"this wheel has no compiled hook: {error}")
        try:
            compiler.build_into(programs_folder)
        except RbtraceError as error:
            self.warn(f"this wheel has no compiled BPF programs: {error}")
        try:
            self.distribution.data_files = list(self._shared())
        except ImportError as error:
            self.warn(f"this wheel has no man pages and no completion: {error}")

    def _shared(self) -> Iterator[tuple[str, list[str]]]:
        """Yield folders below the environment's root, and the files for each."""
        import gen_man_pages

        from rbtrace_py.cli.completion import script
        from rbtrace_py.cli.main import cli

        folder = Path(self.get_finalized_command("build").build_base) / "share"
        pages = gen_man_pages.write(folder / "man" / "man1")
        yield "share/man/man1", [str(page) for page in pages]
        for shell, name in COMPLETION.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(script(cli, shell))
            yield f"share/{Path(name).parent}", [str(path)]


class Wheel(bdist_wheel):
    """A wheel for any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class ForOneMachine(Distribution):
    """Report extension modules: setuptools takes our compiled files for data."""

    def has_ext_modules(self) -> bool:
        return True


setup(distclass=ForOneMachine, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
