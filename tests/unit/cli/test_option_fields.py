"""Fields of dataclasses as click's options."""

from __future__ import annotations

import click
import pytest

from rbtrace_py.cli.common.option_fields import (
    OptionGroup,
    argument,
    option,
    parameters,
    typed,
)


class Shared(OptionGroup):
    first: bool = option("--first")
    second: int | None = option("-s", "--second", type=int)


class Other(OptionGroup):
    third: tuple[str, ...] = option("--third")


class Own(Shared, Other):
    files: tuple[str, ...] = argument(nargs=-1)
    middle: int = option("--middle", after="first", default=3)
    behind: bool = option("--behind")
    second: int | None = option("--two", type=int)


@click.command()
@typed(Own)
def command(options: Own) -> Own:
    """Return the options."""
    return options


def test_own_options_precede_those_of_bases_but_for_after() -> None:
    names = [each.name for each in command.params]
    assert names == ["files", "first", "middle", "behind", "second", "third"]
    assert [each.opts for each in command.params if each.name == "second"] == [
        ["--two"]
    ]


def test_values_are_the_fields() -> None:
    words = ["a", "--third", "x", "--behind", "--third", "y", "--two", "2"]
    assert vars(command.main(words, standalone_mode=False)) == {
        "files": ("a",),
        "first": False,
        "middle": 3,
        "behind": True,
        "second": 2,
        "third": ("x", "y"),
    }


def test_a_default_is_shown() -> None:
    help_ = command.get_help(click.Context(command))
    assert "[default: 3]" in help_
    assert help_.count("default") == 1


def test_changes_of_one_use() -> None:
    function = parameters(Own, files={"metavar": "NAME"})(lambda **given: None)
    assert click.command()(function).params[0].metavar == "NAME"


def test_after_names_a_field() -> None:
    class Wrong(OptionGroup):
        only: bool = option("--only", after="nothing")

    with pytest.raises(ValueError, match="nothing"):
        parameters(Wrong)(lambda **given: None)
