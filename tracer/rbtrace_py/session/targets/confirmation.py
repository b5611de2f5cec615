"""Confirmation of risks for a process and of irreversible effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rbtrace_py.agent.protocol import Map
from rbtrace_py.errors import RbtraceError

Confirm = Callable[[str], bool]
"""Receives a risk, and returns whether the user accepts it; may raise NotConfirmed."""

_JIT_NAME = 8
"""Maximum number of characters of a compiler's name in a message."""

C_CALLS_STAY = (
    "Tracing C methods leaves the process slower until it exits, even after"
    " tracing ends: loops of tiny methods take twice as long, a web application's"
    " requests a few percent"
)
_ALL_HOOKED = (
    "The selected methods cannot be hooked one by one: {}. Hooking all methods slows"
    " down every call in the process while it is traced"
)
_COMPILED_GOES = (
    "Tracing calls discards the code that {} has compiled in the process, which"
    " stays slower afterwards"
)


def what_stays(hello: Map, c_calls: bool = False, why_all: str = "") -> list[str]:
    """Return the side effects of tracing methods in a process.

    Args:
        hello: The agent's hello.
        c_calls: True if methods written in C are traced, too.
        why_all: The reason why all methods are hooked although some were selected.
    """
    texts = [_ALL_HOOKED.format(why_all)] if why_all else []
    texts += [C_CALLS_STAY] if c_calls else []
    jit = hello.get("jit")
    if isinstance(jit, str):
        texts.append(_COMPILED_GOES.format(jit[:_JIT_NAME].upper()))
    return texts


class NotConfirmed(RbtraceError):
    """The user did not accept a risk."""


def accept_none(text: str) -> bool:
    """Accept no risk."""
    return False


def require(confirm: Confirm, text: str, hint: str) -> None:
    """Raise NotConfirmed with ``hint`` unless the user accepts the risk ``text``."""
    if not confirm(text):
        raise NotConfirmed(text, hint)


class Confirmation:
    """Requests confirmation of each risk once, because processes arrive one by one.

    Args:
        confirm: Called with each risk.
    """

    def __init__(self, confirm: Confirm = accept_none) -> None:
        self._confirm = confirm
        self._answers: dict[str, bool] = {}

    def ask(self, texts: Iterable[str]) -> None:
        """Raise NotConfirmed for the first risk that is not confirmed."""
        for text in texts:
            require(self._is_confirmed, text, "Use --yes to do it anyway")

    def _is_confirmed(self, text: str) -> bool:
        if text not in self._answers:
            # ``confirm`` may raise, which declines the risk for later processes, too.
            self._answers[text] = False
            self._answers[text] = self._confirm(text)
        return self._answers[text]
