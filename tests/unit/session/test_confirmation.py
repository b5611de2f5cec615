"""Confirmation of irreversible actions, before any process is changed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

import pytest

from rbtrace_py.agent.protocol import Map
from rbtrace_py.linux.process import Process
from rbtrace_py.session.methods.calls import Calls, CallsOptions
from rbtrace_py.session.methods.tables import MethodOptions, Methods
from rbtrace_py.session.targets.confirmation import (
    C_CALLS_STAY,
    Confirmation,
    NotConfirmed,
    what_stays,
)
from rbtrace_py.session.targets.targets import Targets

PLAIN: Map = {"jit": None}
YJIT: Map = {"jit": "yjit"}


class Asked:
    """A user who answers ``answer`` and records the question."""

    def __init__(self, answer: bool) -> None:
        self.texts: list[str] = []
        self._answer = answer

    def __call__(self, text: str) -> bool:
        self.texts.append(text)
        return self._answer


def of_calls(confirm: Callable[[str], bool], c_calls: bool) -> Callable[..., None]:
    options = CallsOptions(c_calls=c_calls, confirm=confirm)
    return partial(Calls(Targets({}), options)._confirm, options.request())


def of_methods(confirm: Callable[[str], bool], c_calls: bool) -> Callable[..., None]:
    options = MethodOptions(c_calls=c_calls, confirm=confirm)
    session = Methods(Targets({}), "count", ["method"], options)
    return partial(session._confirm, session._request(cast(Process, None)))


each = pytest.mark.parametrize("made", [of_calls, of_methods])
Made = Callable[[Callable[[str], bool], bool], Callable[..., None]]


@each
def test_the_second_process_is_asked_about_too(made: Made) -> None:
    asked = Asked(False)
    before = made(asked, False)
    before(PLAIN)
    assert asked.texts == []
    with pytest.raises(NotConfirmed, match="YJIT has compiled"):
        before(YJIT)
    assert asked.texts == what_stays(YJIT)


@each
def test_only_what_is_new_is_asked(made: Made) -> None:
    asked = Asked(True)
    before = made(asked, True)
    for hello in (PLAIN, YJIT, PLAIN, YJIT):
        before(hello)
    assert asked.texts == [C_CALLS_STAY, *what_stays(YJIT)]


@each
def test_all_methods_instead_of_the_selected(made: Made) -> None:
    """The question is left out if the command starts the program, which is held
    before it defines methods."""
    asked = Asked(True)
    before = made(asked, False)
    before(PLAIN, "more than 1000 methods match")
    (text,) = asked.texts
    assert "one by one: more than 1000 methods match. Hooking all methods slows" in text


@each
def test_a_no_is_not_asked_again(made: Made) -> None:
    """Otherwise, a child without confirmation would be tried again and again."""
    asked = Asked(False)
    before = made(asked, False)
    for _ in range(3):
        with suppress(NotConfirmed):
            before(YJIT)
    assert asked.texts == what_stays(YJIT)


def test_a_no_that_is_raised() -> None:
    asked: list[str] = []

    def confirm(text: str) -> bool:
        asked.append(text)
        raise NotConfirmed("not confirmed")

    confirmation = Confirmation(confirm)
    for hint in ("", "Use --yes to do it anyway"):
        with pytest.raises(NotConfirmed) as raised:
            confirmation.ask(["text"])
        assert raised.value.hint == hint
    assert asked == ["text"]


def test_a_confirmation_without_a_terminal() -> None:
    Confirmation().ask([])
    with pytest.raises(NotConfirmed):
        Confirmation().ask(["text"])


def test_the_name_of_a_compiler_is_cut() -> None:
    (text,) = what_stays({"jit": "yjit" * 99})
    assert "the code that YJITYJIT has" in text
    assert what_stays({"jit": 7}) == []
