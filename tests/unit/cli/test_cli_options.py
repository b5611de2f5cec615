"""The code reads each option that click declares: an unread option has no effect."""

from __future__ import annotations

import ast
import importlib
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import click
import pytest

import rbtrace_py
from rbtrace_py.cli.common.target_options import TargetOptions
from rbtrace_py.cli.main import COMMANDS

CLI = "rbtrace_py.cli"
ROOT = Path(rbtrace_py.__file__).parents[1]
WITHOUT_OPTIONS = ("completion", "rbtrace")
HOLDERS = ("self", "options", "self._options")
TARGET = {field.name for field in fields(TargetOptions)}


def imported(name: str, seen: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """Return the code of a module of ``cli/`` and of the modules there that it
    imports."""
    path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    if name in seen or not path.is_file():
        return seen
    seen[name] = ast.parse(path.read_text())
    for node in ast.walk(seen[name]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(CLI):
            for each in node.names:
                imported(f"{node.module}.{each.name}", seen)
            imported(str(node.module), seen)
    return seen


def read_in(tree: ast.Module) -> set[str]:
    """Fields that are read of options."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if ast.unparse(node.value) in HOLDERS
    }


@pytest.mark.parametrize("name", [*COMMANDS])
def test_each_option_is_a_field_that_is_read(name: str) -> None:
    command = importlib.import_module(f"{CLI}.{name}").command
    if name in WITHOUT_OPTIONS:
        assert not [each for each in command.params if isinstance(each, click.Option)]
        return
    options = get_type_hints(command.callback)["options"]
    declared = {each.name for each in command.params if each.expose_value}
    names = {field.name for field in fields(options)}
    assert declared == names | (TARGET if declared >= TARGET else set())
    assert options.__dataclass_params__.frozen
    trees = imported(f"{CLI}.{name}", {}).values()
    assert names <= set().union(*map(read_in, trees))


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in WITHOUT_OPTIONS])
def test_a_field_has_the_type_that_click_gives(name: str) -> None:
    command = importlib.import_module(f"{CLI}.{name}").command
    types = get_type_hints(get_type_hints(command.callback)["options"])
    for option in command.params:
        if option.name not in types or not isinstance(option, click.Option):
            continue
        found = types[option.name]
        if option.multiple:
            assert found.__origin__ is tuple, option.name
        elif option.is_flag and not option.secondary_opts:
            assert found is bool, option.name
        else:
            has_default = isinstance(option.default, (bool, int, float, str))
            assert has_default != (type(None) in get_args(found)), option.name
