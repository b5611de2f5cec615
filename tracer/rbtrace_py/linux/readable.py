"""Waiting until there is something to read."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasDescriptor(Protocol):
    """An object with a descriptor that can be waited for."""

    def fileno(self) -> int: ...


_Source = TypeVar("_Source", bound=HasDescriptor | int)


def readable(sources: Iterable[_Source], seconds: float) -> list[_Source]:
    """Those with something to read, or whose other end is gone; none: none in time.

    As select(2), which takes no descriptor from 1024 on: of many processes we hold
    more.
    """
    found = {_descriptor(source): source for source in sources}
    poll = select.poll()
    for descriptor in found:
        poll.register(descriptor, select.POLLIN)
    # Rounded up, so that who waits for what is left does not spin.
    ready = poll.poll(math.ceil(max(seconds, 0.0) * 1000))
    return [found[descriptor] for descriptor, _ in ready]


def _descriptor(source: HasDescriptor | int) -> int:
    return source if isinstance(source, int) else source.fileno()
