"""Waiting for readable descriptors."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasDescriptor(Protocol):
    """An object with a descriptor that can be polled."""

    def fileno(self) -> int: ...


_Source = TypeVar("_Source", bound=HasDescriptor | int)


def readable(sources: Iterable[_Source], seconds: float) -> list[_Source]:
    """Return the sources that are readable or at their end; empty after ``seconds``.

    Unlike select(2), this supports descriptors above 1023, which many processes need.
    """
    found = {_descriptor(source): source for source in sources}
    poll = select.poll()
    for descriptor in found:
        poll.register(descriptor, select.POLLIN)
    # Round up, so that a caller waiting for the remaining time does not spin.
    ready = poll.poll(math.ceil(max(seconds, 0.0) * 1000))
    return [found[descriptor] for descriptor, _ in ready]


def _descriptor(source: HasDescriptor | int) -> int:
    return source if isinstance(source, int) else source.fileno()
