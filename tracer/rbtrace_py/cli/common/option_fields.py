"""Options as fields of dataclasses: one declaration for click and for type checks.

A command's dataclass inherits the groups of options that it shares with others. In
--help, the options of a class precede the options of its bases, in Python's method
resolution order. The argument ``after`` places options elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[type], type]:
        """Replace ``typing.dataclass_transform``, which Python 3.10 lacks."""
        return lambda cls: cls


Command = TypeVar("Command", bound=Callable[..., Any])
Options = TypeVar("Options")
Result = TypeVar("Result")


_IMPLIED = {
    "bool": {"is_flag": True},
    "tuple[int, ...]": {"multiple": True},
    "tuple[str, ...]": {"multiple": True},
}
"""Keyword arguments of ``click.option`` that the type of a field implies."""


def option(*names: str, after: str = "", **attributes: Any) -> Any:
    """Return a dataclass field that is an option of the command line.

    The field's name becomes the name of click's parameter. A bool option is a flag, a
    tuple option is repeatable, and --help shows default values.

    Args:
        *names: Names on the command line, such as ``-d`` and ``--duration``.
        after: Name of the field that precedes this field, and those below it in its
            class, in --help.
        **attributes: Keyword arguments of ``click.option``.
    """
    if attributes.get("default") is not None:
        attributes.setdefault("show_default", True)

    def make(name: str, kind: str, **more: Any) -> Callable[[Command], Command]:
        implied = _IMPLIED.get(kind, {})
        return click.option(*names, name, **{**implied, **attributes, **more})

    return field(metadata={"make": make, "after": after})


def argument(**attributes: Any) -> Any:
    """Return a dataclass field that is a ``click.argument`` with these attributes."""

    def make(name: str, kind: str, **more: Any) -> Callable[[Command], Command]:
        return click.argument(name, **attributes, **more)

    return field(metadata={"make": make, "after": ""})


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, argument)
)
class OptionGroup:
    """A group of options; each subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        # Each method that dataclass does not compile makes commands start faster.
        dataclass(init=False, frozen=True, kw_only=True, eq=False, repr=False)(cls)

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def parameters(options: Any, **changes: dict[str, Any]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command the options of a dataclass.

    Args:
        options: The dataclass.
        **changes: More keyword arguments for click, by the name of the field.
    """

    def decorate(function: Command) -> Command:
        for name in reversed(_in_order(options)):
            each = options.__dataclass_fields__[name]
            more = changes.get(name, {})
            function = each.metadata["make"](name, each.type, **more)(function)
        return function

    return decorate


def _in_order(options: Any) -> list[str]:
    """Return the names of fields in the order of --help."""
    order: list[str] = []
    moved: list[list[str]] = []
    seen: set[str] = set()
    for each in options.__mro__:
        run = order
        for name in getattr(each, "__annotations__", ()):
            after = options.__dataclass_fields__[name].metadata["after"]
            if name in seen:
                continue
            if after:
                run = [after]
                moved.append(run)
            run.append(name)
            seen.add(name)
    # Base classes go first, because options of subclasses may follow theirs.
    for after, *run in reversed(moved):
        at = order.index(after) + 1
        order[at:at] = run
    return order


def typed(
    options: Callable[..., Options],
) -> Callable[[Callable[[Options], Result]], Callable[..., Result]]:
    """Give a command its options as one object."""

    def decorate(function: Callable[[Options], Result]) -> Callable[..., Result]:
        def wrapper(**given: Any) -> Result:
            return function(options(**given))

        return parameters(options)(update_wrapper(wrapper, function))

    return decorate


def is_given(name: str) -> bool:
    """Return whether an option was given on the command line, rather than defaulted."""
    source = click.get_current_context().get_parameter_source(name)
    return source is not click.core.ParameterSource.DEFAULT
