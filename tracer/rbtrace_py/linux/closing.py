"""Things that hold a descriptor and are closed when a block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

Self = TypeVar("Self", bound="Closing")
Started = TypeVar("Started", bound="Starting")


class Closing(ABC):
    """Usable in ``with``; leaving closes it. Closing twice does nothing."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held."""

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
    """A Closing that is begun when it is entered; what fails there leaves nothing."""

    @abstractmethod
    def _start(self) -> None:
        """Begin."""

    def __enter__(self: Started) -> Started:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self
