"""Context managers that release a resource when the block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Self = TypeVar("Self", bound="Closing")
Started = TypeVar("Started", bound="Starting")


class Closing(ABC):
    """A context manager that closes itself. Closing twice does nothing."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release the resource."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Starting(Closing):
    """A Closing that starts when it is entered; a failed start releases everything."""

    @abstractmethod
    def _start(self) -> None:
        """Acquire the resource."""

    def __enter__(self: Started) -> Started:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self
