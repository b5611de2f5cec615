"""The Python scripts of scripts/, imported as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

_SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def load(name: str) -> ModuleType:
    """Import ``scripts/NAME.py``."""
    spec = importlib.util.spec_from_file_location(name, _SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
