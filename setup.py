"""What a wheel carries that is made when it is built: see pyproject.toml for the rest.

The agent's hook is compiled, so that a machine without a compiler can attach. Its
source goes with it, for machines of another kind.
"""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "tracer"))

from rbtrace_py.agent import hook  # noqa: E402
from rbtrace_py.errors import RbtraceError  # noqa: E402


class Build(build_py):
    """Also compiles what runs on the target machine."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / "rbtrace_py" / "agent" / hook.BUILT.name
        try:
            hook.build_into(folder)
        except RbtraceError as error:
            self.warn(f"this wheel has no compiled hook: {error}")


class Wheel(bdist_wheel):
    """Of any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class ForOneMachine(Distribution):
    """What is compiled is data to setuptools: it has to be told."""

    def has_ext_modules(self) -> bool:
        return True


setup(distclass=ForOneMachine, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
