"""The base of sessions whose agents arm the method hook."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from rbtrace_py.agent.arming import ARM_SECONDS, Armed, ArmRequest, Selector
from rbtrace_py.agent.place import connect
from rbtrace_py.agent.protocol import Map
from rbtrace_py.agent.starting import HOLD_SECONDS
from rbtrace_py.linux.process import Process
from rbtrace_py.linux.readable import readable
from rbtrace_py.session.methods.agent_session import AgentOptions, AgentSession
from rbtrace_py.session.methods.hook_offsets import hook_offsets
from rbtrace_py.session.targets.confirmation import (
    Confirm,
    Confirmation,
    accept_none,
    what_stays,
)
from rbtrace_py.session.targets.targets import Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class HookOptions(AgentOptions):
    """Options of every session that arms the hook.

    Attributes:
        select: Methods to hook; empty means all.
        c_calls: Also hook methods written in C. The process stays slower afterwards.
        confirm: Called with each risk; returns whether the user accepts it.
    """

    select: Sequence[Selector] = ()
    c_calls: bool = False
    confirm: Confirm = accept_none


class HasHook(Protocol):
    """The data of one process in a session."""

    armed: Armed


Hooked = TypeVar("Hooked", bound=HasHook)


class HookSession(AgentSession[Hooked]):
    """A session whose agents arm the hook according to ``_request`` of a subclass."""

    def __init__(
        self,
        targets: Targets,
        options: HookOptions,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        super().__init__(targets, options, hold_seconds)
        self._confirmation = Confirmation(options.confirm)
        self._natives: set[bool | None] = set()
        """``Armed.native`` of all processes."""

    @abstractmethod
    def _request(self, process: Process) -> ArmRequest:
        """Return what to arm in a process, without offsets."""

    def _arm_hook(
        self,
        process: Process,
        before: Callable[[Map], None] = lambda hello: None,
        seconds: float = ARM_SECONDS,
    ) -> Armed:
        """Arm the hook of a process; for the arguments, see ``Armed``."""
        # A program that has not executed Ruby yet has no offsets.
        connect(process).close()
        what = self._request(process)
        if what.methods:
            what = replace(what, offsets=hook_offsets(process))
        confirm = partial(self._confirm, what)
        armed = Armed(process, what, before, seconds, confirm)
        self._natives.add(armed.native)
        return armed

    def _confirm(self, what: ArmRequest, hello: Map, why_all: str = "") -> None:
        """Confirm irreversible actions in advance; raise NotConfirmed."""
        if what.methods:
            # A COMMAND is held before it defines its methods.
            why_all = "" if self.targets.command else why_all
            self._confirmation.ask(what_stays(hello, what.c_calls, why_all))

    def _listen(self, seconds: float) -> bool:
        """Receive reports of agents, such as exits.

        Wait up to ``seconds`` for the first. Return whether a report was received.
        """
        hooks = (hooked.armed for hooked in self._live.values())
        ready = readable([armed for armed in hooks if armed.ended is None], seconds)
        for armed in ready:
            armed.listen()
        return bool(ready)
