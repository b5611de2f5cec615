"""Target processes of library calls, and the risks that their user accepts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rbtrace_py.errors import NoSuchProbe, UsageError
from rbtrace_py.session.inside.attach import attach_all
from rbtrace_py.session.probes.hints import explain
from rbtrace_py.session.targets.confirmation import Confirm, NotConfirmed
from rbtrace_py.session.targets.targets import Targets

Pids = int | Iterable[int]
"""One process or several."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Processes, and the risks that the user accepts.

    Attributes:
        pids: One process or several.
        subprocesses: Include child processes.
        attach: Load the agent into processes that lack it.
        yes: Accept every risk and irreversible effect.
        wait: Seconds to wait for missing probes or an agent.
    """

    pids: Pids
    subprocesses: bool = False
    attach: bool = False
    yes: bool = False
    wait: float = 0.0

    @property
    def confirm(self) -> Confirm:
        return (lambda text: True) if self.yes else _refuse

    @property
    def wait_seconds(self) -> float | None:
        return None if math.isinf(self.wait) else self.wait

    @contextmanager
    def opened(self) -> Iterator[Targets]:
        """Open the targets, and close them at the end."""
        targets = Targets.from_pids(pid_list(self.pids), self.subprocesses)
        try:
            if self.attach:
                attach_all(targets, lambda line: None, self.confirm)
            yield targets
        except NoSuchProbe as error:
            explain(error, targets.processes.values())
            raise
        finally:
            targets.close()


def pid_list(pids: Pids) -> list[int]:
    """Return the PIDs without duplicates.

    Raises:
        UsageError: No process is given.
    """
    found = [pids] if isinstance(pids, int) else list(dict.fromkeys(pids))
    if not found:
        raise UsageError("no process given")
    return found


def _refuse(text: str) -> bool:
    raise NotConfirmed(text, "Pass yes=True to do it anyway")
