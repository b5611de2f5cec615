"""The layers of the package: each imports only what is below it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tracer" / "rbtrace_py"
NAME = PACKAGE.name

# The layers that a layer may import, in addition to itself and the bottom layer.
BELOW: dict[str, set[str]] = {
    "": {"library"},
    "library": {"report", "session", "recording", "aggregate", "linux"},
    "cli": {
        "report", "session", "recording", "aggregate", "bpf", "agent", "rubyvm", "linux"
    },
    "report": {"aggregate"},
    "session": {"recording", "aggregate", "bpf", "agent", "rubyvm", "linux"},
    "recording": {"aggregate", "linux"},
    "aggregate": set(),
    "bpf": {"linux"},
    "agent": {"linux"},
    "rubyvm": {"linux"},
    "linux": set(),
    "model": set(),
    "errors": set(),
}  # fmt: skip
BOTTOM = {"model", "errors"}
"""Modules that every layer may import; they import nothing of the package."""

OUTSIDE = {
    "bcc": "bpf",
    "hdrh": "aggregate",
    "click": "cli",
    "elftools": "rubyvm",
    "rich": "report",
}
"""Libraries, and the layer that alone may know them."""

PACKED = {"struct", f"{NAME}.bpf.abi", f"{NAME}.bpf.maps", f"{NAME}.bpf.syscall"}
"""Modules that pack and unpack bytes, which is the job of the sources."""

STREAMS = {"stdout", "stderr"}


@dataclass(frozen=True)
class Module:
    path: Path

    @property
    def name(self) -> str:
        words = self.path.relative_to(PACKAGE).with_suffix("").parts
        return ".".join(word for word in words if word != "__init__")

    @property
    def layer(self) -> str:
        return self.name.partition(".")[0]

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(), str(self.path))

    def imports(self) -> Iterator[str]:
        """Full names of modules, wherever in the file they are imported."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from self._from(node)
            elif isinstance(node, ast.Call):
                yield from _by_name(node)

    def _from(self, node: ast.ImportFrom) -> Iterator[str]:
        assert node.level == 0, f"{self.path}:{node.lineno}: write the whole name"
        assert node.module
        for alias in node.names:
            inside = f"{node.module}.{alias.name}"
            yield inside if find_module(inside) else node.module

    def layers(self) -> set[str]:
        """Other layers of the package that it imports."""
        names = (name.split(".") for name in self.imports())
        return {words[1] for words in names if words[0] == NAME and len(words) > 1} - {
            self.layer
        }


def _by_name(call: ast.Call) -> Iterator[str]:
    """``importlib.import_module("…")``, or the constant beginning of an f-string."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if called != "import_module" or not call.args:
        return
    name = call.args[0]
    if isinstance(name, ast.JoinedStr):
        name = name.values[0]
    assert isinstance(name, ast.Constant), "a module's name is computed"
    yield str(name.value).rstrip(".")


def find_module(name: str) -> Path | None:
    """The file of a module of the package, by its full name."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


MODULES = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
each_module = pytest.mark.parametrize(
    "module", MODULES, ids=[module.name or NAME for module in MODULES]
)


def test_every_layer_is_known() -> None:
    assert {module.layer for module in MODULES} - {""} <= set(BELOW)


@each_module
def test_imports_only_what_is_below(module: Module) -> None:
    allowed = set() if module.layer in BOTTOM else BOTTOM
    allowed = allowed | BELOW.get(module.layer, set())
    assert module.layers() <= allowed


@each_module
def test_imports_what_exists(module: Module) -> None:
    own = [name for name in module.imports() if name.split(".")[0] == NAME]
    assert [name for name in own if not find_module(name)] == []


def test_no_import_circles() -> None:
    """Types included: of two modules that need each other neither is read alone.

    The package itself, which every import of a module imports first, needs none.
    """
    imported = {
        f"{NAME}.{module.name}": {name for name in module.imports() if name != NAME}
        for module in MODULES
        if module.name
    }
    circles = dict(imported)
    while ends := {
        name
        for name, below in circles.items()
        if not below & circles.keys()
        or not any(name in of for user, of in circles.items() if user != name)
    }:
        for name in ends:
            del circles[name]
    assert sorted(circles) == []


@each_module
def test_only_the_commands_print(module: Module) -> None:
    if module.layer == "cli":
        return
    said = [node.lineno for node in ast.walk(module.tree) if _prints(node)]
    assert said == []


def _prints(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Name):
        return called.id == "print"
    return (
        isinstance(called, ast.Attribute)
        and called.attr in ("write", "writelines")
        and isinstance(called.value, ast.Attribute)
        and called.value.attr in STREAMS
    )


@pytest.mark.parametrize("library", sorted(OUTSIDE))
def test_a_library_is_known_to_one_layer(library: str) -> None:
    users = _users(library)
    assert users
    assert {module.layer for module in users} == {OUTSIDE[library]}


@pytest.mark.parametrize("library", ["bcc", "hdrh", "rich"])
def test_a_library_is_imported_by_one_module(library: str) -> None:
    assert len(_users(library)) == 1


@pytest.mark.parametrize(
    "module", [one for one in MODULES if one.layer == "session"], ids=lambda m: m.name
)
def test_sessions_leave_bytes_to_the_sources(module: Module) -> None:
    assert PACKED & set(module.imports()) == set()


def _users(library: str) -> list[Module]:
    return [
        module
        for module in MODULES
        if library in {name.partition(".")[0] for name in module.imports()}
    ]


def test_no_module_binds_a_constant_twice() -> None:
    """The second binding would change what the code above it means."""
    twice = {}
    for module in MODULES:
        names = Counter(
            target.id
            for node in module.tree.body
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            for target in (
                node.targets if isinstance(node, ast.Assign) else [node.target]
            )
            if isinstance(target, ast.Name)
        )
        found = [name for name, number in names.items() if number > 1]
        if found:
            twice[module.name] = found
    assert twice == {}
