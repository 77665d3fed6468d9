"""A look at something beside the main thread, as long as a context lasts."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

_END_SECONDS = 10.0


class Background(ABC):
    """A daemon thread: `run` goes on until `ending` is set."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self.run, name=type(self).__name__.lower(), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ending.set()
        self._thread.join(_END_SECONDS)

    @abstractmethod
    def run(self) -> None:
        """What the thread does."""
